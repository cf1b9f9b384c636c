#pragma once
// Data for a first try and for measuring speed, made on the spot: --data synthetic and --data dummy.

#include <string>
#include <vector>

namespace rz {

struct MadeData {
    std::string train, val;   // shards, in the folder for temporary files; the same bytes whenever they are made
    int64_t vocab = 0;        // 0: any model's that has 256 tokens
    double entropy_nats = 0;  // that no model can undercut, per token
    std::string about;        // a line for the user
};

// True: --data means made data: one of the two names, unless a dataset lies in a folder of that name.
bool is_made_data(const std::string& data);

// synthetic: a Markov chain over 32 symbols whose entropy rate is known; dummy: the numbers 0 to 255, each as likely as
// any other, from which nothing can be learned.
MadeData make_data(const std::string& data);

}  // namespace rz
