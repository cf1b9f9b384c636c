#pragma once
// `train_llama coordinates`: the coordinate check of muP (Yang et al. 2022, appendix D.1). The same model at several
// widths takes a few steps; the size of its activations must not depend on the width, from the first step to the last.

#include <string>
#include <vector>

#include "llama/train/options_train.h"

namespace rz {

struct CoordinatesOptions {
    TrainOptions train;
    std::vector<int64_t> widths = {64, 128, 256};
};
// The command's own flags, then those of training; or the former alone, for the list of commands.
CommandTable command_table(CoordinatesOptions&);
CommandTable own_command_table(CoordinatesOptions&);

// One run for each width: heads, kv heads and ffn in proportion, --stats-every 1, in OUT/width_W. Throws where they
// would be no whole numbers.
std::vector<TrainOptions> coordinate_runs(const CoordinatesOptions&);
// Draws runs that are done: a table, and OUT/coordinates.svg.
int draw_coordinates(const CoordinatesOptions&);

}  // namespace rz
