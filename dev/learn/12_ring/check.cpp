#include <cstring>
#include <vector>

#include "comm/collectives.h"
#include "comm/loopback.h"
#include "dev/learn/lesson.h"

using namespace learn;

void ring_all_reduce(rz::Transport& transport, rz::Stream& stream, float* data, int64_t slice, float* scratch);

constexpr int64_t kSlice = 1000;

struct Outcome {
    int64_t wrong_sums = 0, wrong_bits = 0, bytes = 0;
};

// N ranks as threads. Whole numbers as floats have exact sums in any order; noise shows the order.
static Outcome run(int ranks) {
    rz::LoopbackHub hub(ranks, /*timeout_s=*/10);
    std::vector<Outcome> each(static_cast<size_t>(ranks));
    const int64_t n = ranks * kSlice;
    hub.run([&](int rank) {
        auto transport = hub.transport(rank);
        rz::Stream stream(rz::Device{}, "ring");
        std::vector<float> random = noises(int(n), unsigned(rank * n)), program = random, whole(random),
                           scratch(kSlice);
        for (int64_t i = 0; i < n; ++i) whole[size_t(i)] = float((rank + 1) * (i % 97));
        Outcome& o = each[size_t(rank)];
        ring_all_reduce(*transport, stream, whole.data(), kSlice, scratch.data());
        o.bytes = transport->bytes_sent();
        for (int64_t i = 0; i < n; ++i) o.wrong_sums += whole[size_t(i)] != float(ranks * (ranks + 1) / 2 * (i % 97));
        ring_all_reduce(*transport, stream, random.data(), kSlice, scratch.data());
        auto collectives = rz::make_collectives(rz::Algorithm::ring, *transport);
        const std::vector<int64_t> offsets = rz::even_offsets(n, ranks);
        collectives->all_reduce(stream, {.out = program.data(),
                                         .in = program.data(),
                                         .offsets = offsets,
                                         .dtype = rz::DType::f32,
                                         .wire = rz::DType::f32});
        stream.synchronize();
        o.wrong_bits = std::memcmp(random.data(), program.data(), size_t(n) * 4) != 0;
    });
    Outcome all;
    for (const Outcome& o : each) {
        all.wrong_sums += o.wrong_sums, all.wrong_bits += o.wrong_bits;
        all.bytes = o.bytes;
    }
    return all;
}

int main() {
    for (const int ranks : {2, 3, 4, 5}) {
        const Outcome o = run(ranks);
        std::printf("%d ranks:\n", ranks);
        expect(o.wrong_sums == 0, "%lld wrong sums of whole numbers", (long long)o.wrong_sums);
        expect(o.wrong_bits == 0, "%lld ranks whose bits differ from the program's ring", (long long)o.wrong_bits);
        const int64_t want = 2 * (ranks - 1) * kSlice * 4;
        expect(o.bytes == want, "each rank sent %lld bytes; 2 (N - 1) / N of the data are %lld", (long long)o.bytes,
               (long long)want);
    }
    return verdict("every rank sends 2 (N - 1) / N of the data, however many ranks: nobody is in the middle");
}
