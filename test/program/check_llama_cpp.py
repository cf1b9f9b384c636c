#!/usr/bin/env python3
"""Lets llama.cpp itself open exported GGUF files: it must continue prompts with the greedy text of train_llama generate.

    pip install xllamacpp          # llama.cpp, built for CPUs
    test/program/check_llama_cpp.py ./train_llama MODEL PROMPT...

MODEL is a folder; its weights are tried under each kind of RoPE scaling in F32, with its end token as the second of two, and as
they are in F16 and BF16, where rounding may change a text and only that there is one is checked. Ends with counts.
"""

import json
import subprocess

import xllamacpp
from checks import arguments, change, check, end, expect, run, split, work
from rope_kinds import KINDS, scaled

TOKENS = 24
GENERATE = f"generate --device cpu --threads 1 --temperature 0 --max-tokens {TOKENS} --from"
SEPARATOR = "a separator beside the end token"
program, model, *prompts = arguments


def serve(path):
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_gpu_layers, params.cpuparams.n_threads = 64, 0, 1
    params.warmup = params.fit_params = False
    return xllamacpp.Server(params)


def continued(server, prompt):
    answer = server.handle_completions({"prompt": prompt, "n_predict": TOKENS, "temperature": 0, "cache_prompt": False})
    answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
    return (answer["choices"][0]["text"] if "choices" in answer else answer["content"]), answer


for kind, scaling in [*KINDS.items(), (SEPARATOR, None)]:
    folder = work / kind
    scaled(model, folder, scaling)
    if kind == SEPARATOR:  # the second end token ends the model's texts; the first one is a byte that it never makes
        for name in "config.json", "generation_config.json":
            change(folder / name, eos_token_id=[255, json.loads((folder / name).read_text())["eos_token_id"]])
    generate = split([program, GENERATE, folder])
    for dtype in ("fp32", "fp16", "bf16") if kind == "as it is" else ("fp32",):
        path = work / f"{kind}-{dtype}.gguf"
        expect(f"{kind}, {dtype}: exports", run([program, "export", "--from", folder, "--to", path, "--dtype", dtype]))
        server = serve(path)
        for prompt in prompts:
            ours = subprocess.run([*generate, "--prompt", prompt], capture_output=True).stdout.decode()
            text, answer = continued(server, prompt)
            good = ours == prompt + text + "\n" if dtype == "fp32" else bool(text)
            check(f"{kind}, {dtype}: {prompt}", good, f"{ours!r}, llama.cpp has {prompt + text!r}: {answer}")
        del server
end()
