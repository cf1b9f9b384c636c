#pragma once
// Which set each sample of a mix comes from: a pure function of the sample's number, so that the order is the same at
// any number of ranks and a resumed run continues it.
//
// Shares are decimals that sum to 1. Over D samples, D their common denominator, each set gets exactly its share, and
// after any number of samples its count is within one sample of its share: Tijdeman's rule ("The chairman assignment
// problem", Discrete Mathematics 32, 1980). Drawing sets at random, or permuting a period of them, would keep only the
// mean. The table of one period is made once; then finding a sample takes the same time wherever a run begins.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rz {

// Decimals in [0, 1] with at most 6 digits after the point, such as "0.7", one for each set.
struct MixShares {
    std::vector<std::string> text;  // as given
    std::vector<int64_t> parts;     // of `period` samples
    int64_t period = 1;

    // Throws starting with `where`, with the nearest shares if they don't sum to 1.
    static MixShares parse(const std::vector<std::string>& text, const std::string& where);
    bool operator==(const MixShares& other) const { return parts == other.parts && period == other.period; }
};

// Shares from one sample on.
struct MixStage {
    int64_t first = 0;  // sample
    MixShares shares;
};

class MixPlan {
   public:
    // Stages ascending, the first one from sample 0; all of as many sets.
    explicit MixPlan(std::vector<MixStage> stages);

    struct SetSample {
        int set;
        int64_t index;  // which sample of the set, from 0, without end
    };
    SetSample at(int64_t sample) const;                // O(log stages)
    std::vector<int64_t> taken(int64_t sample) const;  // from each set, by the samples before this one
    const std::vector<MixStage>& stages() const { return stages_; }
    int sets() const { return int(stages_[0].shares.parts.size()); }

   private:
    struct Table {                    // of a stage
        std::vector<uint8_t> set;     // of each sample of a period
        std::vector<int32_t> before;  // how many of them came before from the same set
        std::vector<int64_t> base;    // taken from each set before the stage
    };
    const Table& table(int64_t sample, int64_t& within) const;
    static Table make_table(const MixShares&);

    std::vector<MixStage> stages_;
    std::vector<Table> tables_;
};

// "code:0.7,books:0.3" -> names and shares; a folder alone is one set with share 1. Throws naming what is wrong.
struct MixRequest {
    std::vector<std::string> folders, shares;
};
MixRequest parse_mix(const std::string& data);

// "1000:0.5,0.5;2000:0.2,0.8" -> from which step on which shares; steps ascending, above 1.
struct MixChange {
    int64_t step;
    std::vector<std::string> shares;
};
std::vector<MixChange> parse_mix_changes(const std::string& text, size_t sets);

}  // namespace rz
