"""A model folder under each kind of RoPE scaling, for the scripts that compare with llama.cpp."""

import json
import pathlib
import shutil

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
KINDS = {
    "as it is": None,
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": YARN,
    "yarn, other betas": {**YARN, "beta_fast": 8.0, "beta_slow": 0.5},
    "yarn, not truncated": {**YARN, "beta_fast": 2.0, "truncate": False},
    "yarn of factor 1": {**YARN, "factor": 1.0, "attention_factor": 1.7},
}


def scaled(model, folder, scaling, **more):
    """Copies the model; `more` goes into its config.json too."""
    path = pathlib.Path(shutil.copytree(model, folder)) / "config.json"
    config = json.loads(path.read_text())
    config.pop("rope_parameters", None)
    path.write_text(json.dumps({**config, "rope_scaling": scaling, "rope_theta": 10000.0, **more}))
