#pragma once
// How cuBLASLt's algorithm is chosen at the first product of each shape. By default the library's own first suggestion,
// which is the same on every run. Measuring takes the fastest of its suggestions: of those that give the same bits as
// the first one, so that a tuned run has the bits of one that is not; or of all (bits_free), whose last bits then
// belong to the measurement.
//
// A run tunes before it communicates (prepare_products.h): rank 0 measures the shapes of all ranks, and what it has
// chosen is sent to all, kept in the run's folder and manifest, and restored by a resume.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/runtime/device.h"

namespace rz {

enum class GemmTune { off, on, bits_free };
template <>
inline constexpr auto kNames<GemmTune> =
    std::to_array<Named<GemmTune>>({{GemmTune::off, "off"}, {GemmTune::on, "on"}, {GemmTune::bits_free, "bits-free"}});

struct GemmTuning {
    GemmTune tune = GemmTune::off;  // else: time the library's suggestions; synchronises the stream at each new shape
    std::string cache_file = {};    // choices are read from here, and added where they were measured; may not exist yet
    std::string chosen = {};        // lines as in such a file: read first, and what is read or measured is added
    bool closed = false;            // measure nothing any more
    int64_t measured = 0, read = 0;  // shapes decided in either way so far; counted by gemm
};

// This rank's tuning. To be set before products are enqueued; without CUDA it has no effect.
GemmTuning& gemm_tuning(RankContext&);

// --gemm-tune and --gemm-cache FILE, for the rank of `device`. A file without tuning is read and never written. Returns
// what the user should know: that nothing is tuned on this device. Throws where the given file can't be written.
std::string set_gemm_tuning(Device device, GemmTune tune, const std::string& cache_file);

// ---- the cache file: one line per choice. Read as if it came from anywhere: lines that are damaged, of another
// version or too long are passed over, and so is a file that is too big or no regular file. `key` holds no control
// characters but tabs.

using GemmChoice = std::vector<unsigned char>;  // an algorithm, as the library stores it

// The choices recorded under `key` in a file's text, in its order; of `bytes` bytes each.
std::vector<GemmChoice> gemm_choices(std::string_view text, const std::string& key, size_t bytes);
// A line of it, with its end.
std::string gemm_choice_line(const std::string& key, const GemmChoice&, double microseconds);

// Those of a file.
std::vector<GemmChoice> read_gemm_cache(const std::string& path, const std::string& key, size_t bytes);
// Replaces what `key` has. The file is replaced as a whole, so that a reader sees the old or the new one; several ranks
// may write at the same time.
void write_gemm_cache(const std::string& path, const std::string& key, const GemmChoice&, double microseconds);

}  // namespace rz
