"""What is no checkpoint of ours is refused by name, by `inspect` and by `serve` alike, before anything is started; one without a
tokeniser is good for `inspect` and `logits` alone."""

import json
import os
import shutil
import subprocess
import tempfile

from harness import MODEL, SOURCE, check, check_eq, check_in, main, note, run_program, test

DIR = tempfile.TemporaryDirectory(prefix="ry-refusals-")
with open(os.path.join(MODEL, "config.json")) as f:
    CONFIG = json.load(f)


run = run_program  # a serve that does not end is killed and fails the test


def serve(folder):
    return run("serve", folder, "--api.listen=127.0.0.1:0", "--ops.listen=127.0.0.1:0", f"--run.dir={DIR.name}")


def checkpoint(name, without=(), **changes):
    """The demo with other words in its config."""
    folder = os.path.join(DIR.name, name)
    os.mkdir(folder)
    for entry in os.listdir(MODEL):
        if entry != "config.json" and not entry.startswith(without or ("\0",)):
            os.symlink(os.path.join(MODEL, entry), os.path.join(folder, entry))
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({**CONFIG, **changes}, f)
    return folder


def check_refused(folder, *says):
    code, out, err = run("inspect", folder)
    check_eq(code, 3, f"exit status of inspect: {out}{err}")
    wrong = [line.removeprefix("wrong").strip() for line in out.splitlines() if line.startswith("wrong")]
    check_eq(len(wrong), 1, f"lines of what is wrong in {out}")
    for part in says:
        check_in(part, wrong[0], "what is wrong")
    check_eq(serve(folder), (1, "", f"railyard serve: {wrong[0]}\n"), "serve")
    note(wrong[0].replace(DIR.name, "..."))


@test
def quantised_formats_of_others_are_refused_by_name():
    affine = {"group_size": 64, "bits": 4}
    check_refused(checkpoint("mlx", quantization=affine, quantization_config=affine), "MLX affine")
    check_refused(checkpoint("mlx-late", quantization_config=affine), "MLX affine")
    check_refused(checkpoint("fp8", quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]}), "FP8")
    check_refused(checkpoint("gguf", quantization_config={"quant_method": "gguf"}), "GGUF")
    check_refused(checkpoint("awq", quantization_config={"quant_method": "awq"}), '"awq"', "not supported")


@test
def gguf_files_are_refused_by_name():
    path = os.path.join(DIR.name, "model.gguf")
    with open(path, "wb") as f:
        f.write(b"GGUF" + bytes(64))
    check_refused(path, path, "GGUF")
    folder = checkpoint("gguf-inside", without=("model",))
    shutil.copy(path, folder)
    check_refused(folder, "GGUF")
    folder = checkpoint("gguf-renamed", without=("model",))
    shutil.copy(path, os.path.join(folder, "model.safetensors"))
    check_refused(folder, "model.safetensors", "GGUF")


@test
def other_families_are_refused_by_name():
    for family in ("qwen3_next", "qwen3", "qwen3_moe", "qwen2", "qwen2_moe", "llama", "mistral", "gemma3", "deepseek_v3"):
        check_refused(checkpoint(family, model_type=family), "model_type", f'"{family}"', "qwen3_5")


@test
def a_broken_checkpoint_is_refused_before_anything_is_started():
    folder = checkpoint("cut", without=("model-00002",))
    name = "model-00002-of-00002.safetensors"
    shutil.copy(os.path.join(MODEL, name), folder)
    os.truncate(os.path.join(folder, name), os.path.getsize(os.path.join(folder, name)) - 2)
    check_refused(folder, name)
    check_refused(checkpoint("missing", without=("model-00002",)), name)
    check_refused(checkpoint("wide", hidden_size=CONFIG["hidden_size"] + 128), "wanted", "found")


@test
def a_folder_that_is_not_there_has_one_line():
    folder = os.path.join(DIR.name, "nowhere")
    check_eq(run("inspect", folder)[0], 3, "exit status of inspect")
    code, out, err = serve(folder)
    check_eq((code, out), (1, ""), "serve")
    check_in(folder, err, "the line")
    check_eq(len(err.splitlines()), 1, f"lines of {err!r}")


@test
def a_checkpoint_without_a_tokeniser_is_inspected_and_computed_but_not_served():
    folder = os.path.join(DIR.name, "tiny")
    subprocess.run(["/usr/bin/python3", os.path.join(SOURCE, "tests/tools/make_tiny.py"), folder], check=True)
    code, out, err = run("inspect", folder)
    check_eq((code, err), (0, ""), f"inspect: {out}")
    check_in("tokeniser   none", out, "inspect")
    check_in("template    none", out, "inspect")
    path = os.path.join(DIR.name, "logits.npy")
    check_eq(run("logits", folder, f"--out={path}", stdin="[1, 2, 3]"), (0, "", ""), "logits")
    with open(path, "rb") as f:
        check_in(b"'shape': (3, 256)", f.read(128), "the file of logits")
    code, out, err = serve(folder)
    check_eq((code, out), (1, ""), "serve")
    check_in("tokenizer.json", err, "the line")
    check_eq(len(err.splitlines()), 1, f"lines of {err!r}")


@test
def what_inspect_says_of_a_good_one():
    code, out, err = run("inspect", MODEL)
    check_eq((code, err), (0, ""), "inspect")
    for part in ("tokeniser   ", "template    rules ", "family      qwen3_5", "layers      8: 2 full attention, 6 delta net",
                 "BF16", "lm_head" if not CONFIG["tie_word_embeddings"] else "tied", "digest      ", "right       "):
        check_in(part, out, "inspect")
    check_eq(run("inspect", "--check", MODEL), (0, "", ""), "inspect --check")


main()
