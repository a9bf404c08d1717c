"""Packs compiled kernels and makes the files that embed them.

  fatbin.py OUT.S OUT.c FATBINARY WORK_DIR ARCH,ARCH,.. {NAME COMPILATION..}..     the compilations of a file in the order of ARCH

For each .cu: one fatbin of its cubins and its PTX; in OUT.S all fatbins by .incbin; in OUT.c the tables of fatbin.h, read
from the cubins themselves, so that a test can hold every plan against what was really compiled.
"""

import hashlib
import os
import struct
import subprocess
import sys

PARAM_SIZE = 0x19  # EIATTR_CBANK_PARAM_SIZE
FORMAT_SIZED = 4  # EIFMT_SVAL: a 16-bit length, then the value; other formats are 4 bytes in all
WAIT = 0x82E  # griddepcontrol.wait in the code of sm_90, 100 and 120: the low twelve bits of an instruction
INSTRUCTION_BYTES = 16
RESERVED_SHARED = 1024  # counted in a cubin's shared memory from sm_90 on; not part of what a kernel may use


def sections(data):
    """name -> (size, bytes) of a little-endian ELF64 file."""
    offset, = struct.unpack_from("<Q", data, 0x28)
    entry, count, names = struct.unpack_from("<HHH", data, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", data, offset + i * entry) for i in range(count)]
    base = heads[names][4]
    found = {}
    for name, kind, _, _, at, size in heads:
        end = data.index(b"\0", base + name)
        body = b"" if kind == 8 else data[at:at + size]
        found[data[base + name:end].decode()] = (size, body)
    return found


def param_bytes(info):
    at = 0
    while at + 4 <= len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        if attribute == PARAM_SIZE:
            return value
        at += 4 + (value if form == FORMAT_SIZED else 0)
    return 0


def waits(code):
    return any(struct.unpack_from("<H", code, at)[0] & 0xFFF == WAIT for at in range(0, len(code), INSTRUCTION_BYTES))


def kernels_of(path, arch):
    """(name, sm, static shared bytes, argument bytes, whether it waits) of each kernel in a cubin."""
    with open(path, "rb") as f:
        table = sections(f.read())
    sm = int(arch.rstrip("abf"))
    for name in table:
        if not name.startswith(".nv.constant0."):
            continue
        kernel = name[len(".nv.constant0."):]
        shared = table.get(".nv.shared." + kernel, (0, b""))[0]
        if shared and sm >= 90:
            shared -= RESERVED_SHARED
        params = param_bytes(table[".nv.info." + kernel][1])
        yield kernel, sm, shared, params, int(sm >= 90 and waits(table[".text." + kernel][1]))


def pack(fatbinary, out, compiled):
    command = [fatbinary, "--create=" + out, "-64"]
    for arch, path in compiled:
        kind, sm = ("ptx", "80") if arch == "ptx" else ("elf", arch)
        command.append(f"--image3=kind={kind},sm={sm},file={path}")
    subprocess.run(command, check=True)


def write_assembly(path, fatbins):
    with open(path, "w", encoding="utf-8") as f:
        f.write('    .section .rodata.fatbin, "a"\n')
        for i, fatbin in enumerate(fatbins):
            with open(fatbin, "rb") as b:
                digest = hashlib.sha256(b.read()).hexdigest()  # so that the object follows the content
            f.write(f"    // {digest}\n    .balign 64\n    .globl cuda_image_{i}\n    .hidden cuda_image_{i}\n"
                    f'cuda_image_{i}:\n    .incbin "{os.path.abspath(fatbin)}"\n')
        f.write('    .section .note.GNU-stack, "", %progbits\n')


def write_tables(path, names, kernels):
    with open(path, "w", encoding="utf-8") as f:
        f.write('// Made by kernels/cuda/fatbin.py.\n#include "kernels/cuda/fatbin.h"\n\n')
        for i in range(len(names)):
            f.write(f"extern const unsigned char cuda_image_{i}[];\n")
        f.write("const struct cuda_image cuda_images[] = {\n")
        for i, name in enumerate(names):
            f.write(f'    {{"{name}", cuda_image_{i}}},\n')
        f.write(f"    {{0, 0}}}};\nconst uint32_t cuda_images_count = {len(names)};\n\n")
        order = sorted(kernels, key=lambda k: k.encode())
        for i, kernel in enumerate(order):
            rows = ", ".join("{%d, %d, %d, %d}" % row for row in kernels[kernel][1])
            f.write(f"static const struct cuda_kernel_arch archs_{i}[] = {{{rows}}};\n")
        f.write("const struct cuda_kernel cuda_kernels[] = {\n")
        for i, kernel in enumerate(order):
            image, rows = kernels[kernel]
            f.write(f'    {{"{kernel}", {image}, {len(rows)}, archs_{i}}},\n')
        f.write(f"    {{0, 0, 0, 0}}}};\nconst uint32_t cuda_kernels_count = {len(order)};\n")


def main():
    out_s, out_c, fatbinary, work, archs = sys.argv[1:6]
    archs = archs.split(",") if archs else []
    rest, step = sys.argv[6:], len(archs) + 1
    os.makedirs(work, exist_ok=True)
    names, fatbins, kernels = [], [], {}
    for i in range(0, len(rest), step):
        name, compiled = rest[i], list(zip(archs, rest[i + 1:i + step]))
        fatbin = os.path.join(work, f"{i // step}.fatbin")
        pack(fatbinary, fatbin, compiled)
        for arch, path in compiled:
            if arch == "ptx":
                continue
            for kernel, *row in kernels_of(path, arch):
                image, rows = kernels.setdefault(kernel, (len(names), []))
                if image != len(names):
                    sys.exit(f"kernel '{kernel}': wanted in one file, found in {names[image]} and {name}")
                rows.append(tuple(row))
        names.append(name)
        fatbins.append(fatbin)
    write_assembly(out_s, fatbins)
    write_tables(out_c, names, kernels)
    return 0


if __name__ == "__main__":
    sys.exit(main())
