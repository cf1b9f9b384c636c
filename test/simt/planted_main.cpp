// planted list                every bug's name and the builds that must catch it
// planted fixed SEEDS         all kernels without their bugs: nothing may be found
// planted INDEX SEEDS         one bug: "caught N of SEEDS: first message", exit 0 if at least once
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/runtime/check.h"
#include "test/simt/control.h"
#include "test/simt/device_array.h"
#include "test/simt/planted.h"

using namespace rz;
using planted::Bug;
using planted::kValues;

namespace {

struct Outcome {
    std::vector<float> values;
    std::string error;
};

Outcome once(const Bug& bug, bool fixed) {
    std::vector<float> host(kValues);
    for (int i = 0; i < kValues; i++) host[size_t(i)] = float(i * 7 % 101) + 1;
    Outcome o;
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    {
        selftest::DeviceArray<float> in(host), out(std::vector<float>(kValues, 0));
        try {
            bug.run(out.data(), in.data(), fixed, stream);
        } catch (const Error& e) {
            o.error = e.what();
        }
        if (cudaStreamSynchronize(stream) != cudaSuccess) o.error = simt::last_error();
        o.values = out.get();
    }
    cudaStreamDestroy(stream);
    return o;
}

// How many seeds show it: an error, or other values than the fixed kernel gives in order.
int detections(const Bug& bug, bool fixed, int seeds, std::string* first) {
    simt::options().policy = simt::Policy::in_order;
    simt::options().late_async = false;
    const std::vector<float> want = once(bug, true).values;
    simt::options().policy = simt::Policy::mix;
    simt::options().late_async = true;
    int n = 0;
    for (int seed = 1; seed <= seeds; seed++) {
        simt::options().seed = uint64_t(seed);
        simt::seed_streams(uint64_t(seed));
        const Outcome o = once(bug, fixed);
        const bool wrong = memcmp(o.values.data(), want.data(), kValues * sizeof(float)) != 0;
        if ((wrong || !o.error.empty()) && n++ == 0) *first = o.error.empty() ? "wrong result" : o.error;
    }
    return n;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 && !strcmp(argv[1], "list")) {
        for (int i = 0; i < planted::n_bugs; i++)
            printf("%d\t%s\t%s\n", i, planted::bugs[i].must, planted::bugs[i].name);
        return 0;
    }
    if (argc != 3) return fprintf(stderr, "usage: planted list | planted fixed SEEDS | planted INDEX SEEDS\n"), 2;
    const int seeds = atoi(argv[2]);
    std::string first;
    if (strcmp(argv[1], "fixed")) {
        const int n = detections(planted::bugs[atoi(argv[1])], false, seeds, &first);
        printf("caught %d of %d: %s\n", n, seeds, first.c_str());
        return n ? 0 : 1;
    }
    int bad = 0;
    for (int i = 0; i < planted::n_bugs; i++)
        if (detections(planted::bugs[i], true, seeds, &first))
            bad++, printf("%s, without its bug: %s\n", planted::bugs[i].name, first.c_str());
    return bad ? 1 : 0;
}
