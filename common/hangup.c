/* hangup: see hangup.h. */
#include "common/hangup.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

static bool is_path(const struct sockaddr_un *a, socklen_t len, const char *path) {
    return len > sizeof(sa_family_t) && a->sun_family == AF_UNIX &&
           !strncmp(a->sun_path, path, sizeof a->sun_path);
}

static bool is_connection_of(int fd, const char *path) {
    struct sockaddr_un here = {0}, there = {0};
    socklen_t here_len = sizeof here, there_len = sizeof there;
    if (getsockname(fd, (struct sockaddr *)&here, &here_len)) return false;
    if (getpeername(fd, (struct sockaddr *)&there, &there_len)) return false; // a listener, or gone
    return is_path(&here, here_len, path) || is_path(&there, there_len, path);
}

int hangup_url(const char *url) {
    static const char scheme[] = "ipc://";
    int count = 0;
    if (strncmp(url, scheme, sizeof scheme - 1)) return 0;
    const char *path = url + sizeof scheme - 1;
    DIR *d = opendir("/proc/self/fd");
    if (!d) return 0;
    for (struct dirent *x; (x = readdir(d));) {
        int fd = atoi(x->d_name);
        if (x->d_name[0] == '.' || fd == dirfd(d) || !is_connection_of(fd, path)) continue;
        count += shutdown(fd, SHUT_RDWR) == 0;
    }
    closedir(d);
    return count;
}
