#!/usr/bin/env python3
"""Lets llama.cpp itself open exported GGUF files: it must continue prompts with the greedy text of train_llama generate.

    pip install xllamacpp          # llama.cpp, built for CPUs
    test/program/check_llama_cpp.py ./train_llama MODEL PROMPT...

MODEL is a folder; its weights are tried under each kind of RoPE scaling in F32, with its end token as the second of two, and as
they are in F16 and BF16, where rounding
may change a text and only that there is one is checked. Ends with "N passed, N failed".
"""

import json
import os
import subprocess
import sys
import tempfile

import xllamacpp
from rope_kinds import KINDS, scaled

TOKENS = 24
SEPARATOR = "a separator beside the end token"


def two_ends(folder):
    """The model ends its texts with the second of two end tokens; the first one is a byte that it never makes."""
    for name in ("config.json", "generation_config.json"):
        path = os.path.join(folder, name)
        with open(path) as f:
            config = json.load(f)
        config["eos_token_id"] = [255, config["eos_token_id"]]
        with open(path, "w") as f:
            json.dump(config, f)


def serve(path):
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_gpu_layers, params.cpuparams.n_threads = 64, 0, 1
    params.warmup = params.fit_params = False
    return xllamacpp.Server(params)


def continued(server, prompt):
    answer = server.handle_completions({"prompt": prompt, "n_predict": TOKENS, "temperature": 0, "cache_prompt": False})
    answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
    return (answer["choices"][0]["text"] if "choices" in answer else answer["content"]), answer


def main(program, model, prompts):
    passed = failed = 0
    with tempfile.TemporaryDirectory() as work:
        for kind, scaling in [*KINDS.items(), (SEPARATOR, None)]:
            folder = os.path.join(work, kind)
            scaled(model, folder, scaling)
            if kind == SEPARATOR:
                two_ends(folder)
            for dtype in ("fp32", "fp16", "bf16") if kind == "as it is" else ("fp32",):
                path = os.path.join(work, f"{kind}-{dtype}.gguf")
                export = ["export", "--from", folder, "--to", path, "--dtype", dtype]
                subprocess.run([program, *export], check=True, stdout=subprocess.DEVNULL)
                server = serve(path)
                for prompt in prompts:
                    generate = ["generate", "--from", folder, "--device", "cpu", "--threads", "1", "--temperature", "0"]
                    run = subprocess.run(
                        [program, *generate, "--max-tokens", str(TOKENS), "--prompt", prompt],
                        check=True,
                        capture_output=True,
                    )
                    text, answer = continued(server, prompt)
                    ok = run.stdout.decode() == prompt + text + "\n" if dtype == "fp32" else bool(text)
                    passed, failed = passed + ok, failed + (not ok)
                    if not ok:
                        print(f"{kind}, {dtype}: {run.stdout.decode()!r}, llama.cpp has {prompt + text!r}: {answer}")
                del server
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
