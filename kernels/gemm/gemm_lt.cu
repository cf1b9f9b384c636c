#include "kernels/gemm/gemm_lt.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/bit_sum.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_tuning.h"
#include "kernels/cuda/gpu.cuh"
#include "kernels/runtime/context.h"
#include "kernels/runtime/cuda_check.h"
#include "kernels/runtime/memory.h"

namespace rz {
namespace {

constexpr int kSuggestions = 24;  // that are timed, where measuring is asked for
constexpr int kTimings = 3;       // of each; the middle one counts

struct Suggestions {
    int count = 0;
    cublasLtMatmulHeuristicResult_t found[kSuggestions];  // (in a std::vector, its unnamed struct crashes nvcc 13.0)
};

// At most `wanted` of the library's suggestions, the most promising first.
Suggestions suggestions(const LtProduct& p, const std::string& key, const LtSession& session, int wanted) {
    cublasLtMatmulPreferenceOpaque_t preference;
    check_lt(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
        check_lt(cublasLtMatmulPreferenceSetAttribute(&preference, what, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, session.workspace_bytes);
    // Partial sums of split-K stay in fp32: "in place" adds them up in C, in C's type.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
                 (p.c_dtype == DType::f32 ? CUBLASLT_REDUCTION_SCHEME_INPLACE : CUBLASLT_REDUCTION_SCHEME_NONE)));
    for (const auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        set(which, p.alignment);
    Suggestions result;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(session.handle, p.operation, p.first, p.second, p.result, p.result, &preference,
                                       wanted, result.found, &result.count);
    require(status == CUBLAS_STATUS_SUCCESS && result.count > 0 && result.found[0].state == CUBLAS_STATUS_SUCCESS,
            "gemm: cuBLASLt has no algorithm for %s: %s; use other sizes, strides or dtypes", key.c_str(),
            cublasLtGetStatusString(status));
    return result;
}

cublasStatus_t enqueue(const LtProduct& p, void* c, const LtSession& session, const cublasLtMatmulAlgo_t& algorithm,
                       Stream& stream) {
    return cublasLtMatmul(session.handle, p.operation, &p.alpha, p.first_data, p.first, p.second_data, p.second,
                          &p.beta, p.add ? p.add : c, p.result, c, p.result, &algorithm, session.workspace,
                          session.workspace_bytes, stream.cuda());
}

// Tells if algorithms sum in one order, by what is left of a product when its rounded C, as the first suggestion makes
// it, is subtracted: a C in 16 bits would hide most of the differences.
class SumsOf {
   public:
    SumsOf(const LtProduct& p, const LtSession& session, const Buffer& c, const Buffer& rounded, Stream& on)
        : p_(p), session_(session), c_(c), rounded_(rounded), on_(on) {
        sum_ = Buffer(on.device(), sizeof(uint64_t), MemKind::workspace, "bits of a timed product");
        p_.beta = 0, p_.add = nullptr;
    }
    // False if the library refuses to run it.
    bool start(const cublasLtMatmulAlgo_t& first) {
        on_.zero(rounded_.data(), rounded_.bytes());
        if (!ran(enqueue(p_, rounded_.data(), session_, first, on_))) return false;
        p_.beta = -1;
        return bits_of(first, &first_);
    }
    bool equal(const cublasLtMatmulAlgo_t& algorithm) {
        uint64_t bits = 0;
        return bits_of(algorithm, &bits) && bits == first_;
    }

   private:
    static bool ran(cublasStatus_t status) {
        if (status != CUBLAS_STATUS_SUCCESS) cudaGetLastError();
        return status == CUBLAS_STATUS_SUCCESS;
    }
    bool bits_of(const cublasLtMatmulAlgo_t& algorithm, uint64_t* bits) {
        on_.copy(c_.data(), rounded_.data(), c_.bytes());
        on_.zero(sum_.data(), sum_.bytes());
        if (!ran(enqueue(p_, c_.data(), session_, algorithm, on_))) return false;
        bit_sum_cuda({.sum = sum_.as<uint64_t>(), .data = c_.data(), .bytes = p_.c_bytes}, on_.cuda());
        on_.copy(bits, sum_.data(), int64_t(sizeof *bits));
        on_.synchronize();
        return true;
    }

    LtProduct p_;
    const LtSession& session_;
    const Buffer &c_, &rounded_;
    Stream& on_;
    Buffer sum_;
    uint64_t first_ = 0;
};

// Times every suggestion on the caller's operands, with another C and with the L2 cache refilled before each run, as it
// is in a training step; unless `any_bits`, of those that leave the bits of the first one. Returns false where there is
// no memory for that, the stream is being captured, or none ran.
bool measure_fastest(const LtProduct& p, const std::string& key, const LtSession& session, Stream& on, bool any_bits,
                     cublasLtMatmulAlgo_t* fastest, float* microseconds) {
    const CudaStream stream = on.cuda();
    cudaStreamCaptureStatus capture;
    CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
    const Device device = on.device();
    int l2 = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device.index));
    const int64_t flush_bytes = 2 * int64_t(l2) + 256;
    if (capture != cudaStreamCaptureStatusNone ||
        device.free_bytes() < 2 * p.c_bytes + flush_bytes + (int64_t(256) << 20))
        return false;
    const Buffer c(device, p.c_bytes, MemKind::workspace, "C of a timed product");
    const Buffer flush(device, flush_bytes, MemKind::workspace, "what fills the L2 cache before a timed product");
    const Buffer rounded(device, p.c_bytes, MemKind::workspace, "C of a timed product");
    SumsOf sums(p, session, c, rounded, on);
    if (!sums.start(suggestions(p, key, session, 1).found[0].algo)) return false;
    cudaEvent_t start, stop;
    CUDA_CHECK(cudaEventCreate(&start));
    CUDA_CHECK(cudaEventCreate(&stop));
    float best = INFINITY;
    const Suggestions candidates = suggestions(p, key, session, kSuggestions);
    for (int i = 0; i < candidates.count; ++i) {
        if (candidates.found[i].state != CUBLAS_STATUS_SUCCESS) continue;
        const cublasLtMatmulAlgo_t& algorithm = candidates.found[i].algo;
        float times[kTimings];
        // A suggestion may turn out to be refused.
        if (!any_bits && !sums.equal(algorithm)) continue;
        if (enqueue(p, c.data(), session, algorithm, on) != CUBLAS_STATUS_SUCCESS) {
            cudaGetLastError();
            continue;
        }
        for (float& ms : times) {
            CUDA_CHECK(cudaMemsetAsync(flush.data(), 1, size_t(flush_bytes), stream));
            CUDA_CHECK(cudaEventRecord(start, stream));
            check_lt(enqueue(p, c.data(), session, algorithm, on), "a timed product");
            CUDA_CHECK(cudaEventRecord(stop, stream));
            CUDA_CHECK(cudaEventSynchronize(stop));
            CUDA_CHECK(cudaEventElapsedTime(&ms, start, stop));
        }
        std::sort(times, times + kTimings);
        if (times[kTimings / 2] >= best) continue;
        best = times[kTimings / 2];
        *fastest = algorithm;
    }
    CUDA_CHECK(cudaEventDestroy(start));
    CUDA_CHECK(cudaEventDestroy(stop));
    *microseconds = best * 1000;
    return best < INFINITY;
}

// The cache file's name of the choice.
std::string cache_key(const GemmTuning& tuning, const std::string& key, Stream& stream) {
    return Device{DeviceKind::cuda, stream.device().index}.name() + ", " + gemm_library_cuda() +
           (tuning.tune == GemmTune::bits_free ? ", any bits" : "") + "\t" + key;
}

// The first choice for this product that the library still accepts.
bool accepted(const std::vector<GemmChoice>& choices, const LtProduct& p, const LtSession& session,
              cublasLtMatmulAlgo_t* chosen) {
    for (const GemmChoice& choice : choices) {
        cublasLtMatmulAlgo_t algorithm;
        cublasLtMatmulHeuristicResult_t result{};
        std::memcpy(&algorithm, choice.data(), sizeof algorithm);
        if (cublasLtMatmulAlgoCheck(session.handle, p.operation, p.first, p.second, p.result, p.result, &algorithm,
                                    &result) != CUBLAS_STATUS_SUCCESS ||
            result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > session.workspace_bytes)
            continue;
        *chosen = algorithm;
        return true;
    }
    return false;
}

}  // namespace

cublasLtMatmulAlgo_t choose_algorithm(const LtProduct& p, const std::string& shape, const LtSession& session,
                                      Stream& stream) {
    GemmTuning& tuning = gemm_tuning(stream.context());
    cublasLtMatmulAlgo_t algorithm;
    float microseconds = 0;
    const bool tuned = tuning.tune != GemmTune::off || !tuning.cache_file.empty() || !tuning.chosen.empty();
    const std::string key = tuned ? cache_key(tuning, shape, stream) : "";
    if (tuned && accepted(gemm_choices(tuning.chosen, key, sizeof algorithm), p, session, &algorithm)) {
        ++tuning.read;
        return algorithm;
    }
    const auto note = [&] {
        GemmChoice choice(sizeof algorithm);
        std::memcpy(choice.data(), &algorithm, sizeof algorithm);
        tuning.chosen += gemm_choice_line(key, choice, double(microseconds));
        return choice;
    };
    if (!tuning.cache_file.empty() &&
        accepted(read_gemm_cache(tuning.cache_file, key, sizeof algorithm), p, session, &algorithm)) {
        ++tuning.read;
        note();
        return algorithm;
    }
    if (tuning.tune != GemmTune::off && !tuning.closed &&
        measure_fastest(p, shape, session, stream, tuning.tune == GemmTune::bits_free, &algorithm, &microseconds)) {
        ++tuning.measured;
        const GemmChoice choice = note();
        if (!tuning.cache_file.empty()) write_gemm_cache(tuning.cache_file, key, choice, double(microseconds));
        return algorithm;
    }
    return suggestions(p, shape, session, 1).found[0].algo;
}

void multiply(const LtProduct& p, const LtSession& session, const cublasLtMatmulAlgo_t& algorithm, Stream& stream) {
    check_lt(enqueue(p, p.c, session, algorithm, stream), "cublasLtMatmul");
}

uint32_t common_alignment(const void* a, const void* b, const void* c, const void* add) {
    uintptr_t bits = 256;
    for (const void* p : {a, b, c, add}) bits |= reinterpret_cast<uintptr_t>(p);
    return uint32_t(bits & ~(bits - 1));
}

}  // namespace rz
