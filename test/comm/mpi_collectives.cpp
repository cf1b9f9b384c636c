// The ring and the direct algorithm against MPI's own collectives, bit for bit, on any number of ranks.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "comm/mesh.h"
#include "comm/meter.h"
#include "kernels/runtime/memory.h"
#include "test/comm/mpi_main.h"
#include "zero/unit_layout.h"
#include "test/comm/ranks.h"

// How often each thread asks MPI, while it is counted: MPI's profiling interface puts the program's function before its
// own.
static struct {
    std::mutex mutex;
    bool counts = false;
    std::map<std::thread::id, int64_t> by_thread;
} asked;

extern "C" int MPI_Testall(int n, MPI_Request requests[], int* done, MPI_Status statuses[]) {
    {
        const std::lock_guard lock(asked.mutex);
        if (asked.counts) ++asked.by_thread[std::this_thread::get_id()];
    }
    return PMPI_Testall(n, requests, done, statuses);
}

// Which collectives of MPI the library's are made of, likewise.
static struct {
    std::mutex mutex;
    std::map<std::string, int> by_name;
} called;

static void count_call(const char* name) {
    const std::lock_guard lock(called.mutex);
    ++called.by_name[name];
}

extern "C" int MPI_Iallgather(const void* in, int n, MPI_Datatype type, void* out, int out_n, MPI_Datatype out_type,
                              MPI_Comm comm, MPI_Request* request) {
    count_call("allgather");
    return PMPI_Iallgather(in, n, type, out, out_n, out_type, comm, request);
}
extern "C" int MPI_Iallgatherv(const void* in, int n, MPI_Datatype type, void* out, const int counts[],
                               const int starts[], MPI_Datatype out_type, MPI_Comm comm, MPI_Request* request) {
    count_call("allgatherv");
    return PMPI_Iallgatherv(in, n, type, out, counts, starts, out_type, comm, request);
}
extern "C" int MPI_Ireduce_scatter(const void* in, void* out, const int counts[], MPI_Datatype type, MPI_Op op,
                                   MPI_Comm comm, MPI_Request* request) {
    count_call("reduce_scatter");
    return PMPI_Ireduce_scatter(in, out, counts, type, op, comm, request);
}
extern "C" int MPI_Ireduce_scatter_block(const void* in, void* out, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                                         MPI_Request* request) {
    count_call("reduce_scatter_block");
    return PMPI_Ireduce_scatter_block(in, out, n, type, op, comm, request);
}

namespace rz {
namespace {

constexpr int64_t kChunk = 4096;  // bytes: several chunks per slice at small sizes

// Device memory with a copy on the host: the tests run on the device that RZ_TEST_DEVICE names (default cpu).
struct Memory {
    Memory(Device device, int64_t bytes) : buffer(device, bytes, MemKind::workspace, "test") {}
    Buffer buffer;
    void set(Stream& stream, const std::vector<char>& values) {
        stream.copy(buffer.data(), values.data(), int64_t(values.size()));
        stream.synchronize();
    }
    std::vector<char> get(Stream& stream) {
        std::vector<char> values(static_cast<size_t>(buffer.bytes()));
        stream.copy(values.data(), buffer.data(), buffer.bytes());
        stream.synchronize();
        return values;
    }
};

TransportKind transport_kind() {
    const char* kind = std::getenv("RZ_TEST_TRANSPORT");
    return parse_name<TransportKind>("RZ_TEST_TRANSPORT", kind ? kind : "mpi");
}

TransportKind mesh_transport() {
    return transport_kind() == TransportKind::mpi ? TransportKind::automatic : transport_kind();
}

Device test_device() {
    static const Device device = [] {
        const char* what = std::getenv("RZ_TEST_DEVICE");
        std::string note;
        return test_process().choose_device(parse_name<DeviceChoice>("RZ_TEST_DEVICE", what ? what : "cpu"),
                                            transport_kind(), &note);
    }();
    return device;
}

// Transports are costly (a communicator each), so all tests share one per group.
Transport& world() {
    static std::unique_ptr<Transport> transport =
        test_process().make_transport(transport_kind(), test_device(), 0, test_process().rank(), "world");
    return *transport;
}

std::vector<char> nans(int64_t n, DType t) { return to_bytes(std::vector<float>(size_t(n), NAN), t); }

struct Case {
    std::vector<int64_t> offsets;
    DType dtype = DType::f32, wire = DType::f32, out = DType::f32;
    float scale = 1;
    bool in_place = false;
};

std::vector<char> values_of(int rank, const Case& c, float (*value)(int, int64_t) = exact_value) {
    std::vector<float> v(static_cast<size_t>(c.offsets.back()));
    for (size_t i = 0; i < v.size(); ++i) v[i] = value(rank, int64_t(i));
    return to_bytes(v, c.dtype);
}

// Everything is what it was, or what it should be: the outputs and what must not be touched.
std::vector<char> all_reduce(Collectives& how, Stream& stream, const Case& c,
                             float (*value)(int, int64_t) = exact_value) {
    const int64_t n = c.offsets.back(), bytes = n * size_of(c.dtype);
    const auto mine = values_of(how.rank(), c, value);
    Memory in(how.transport().device(), bytes), out(how.transport().device(), c.in_place ? 0 : bytes);
    in.set(stream, mine);
    if (!c.in_place) out.set(stream, nans(n, c.dtype));
    Memory& result = c.in_place ? in : out;
    how.all_reduce(stream, {.out = result.buffer.data(),
                            .in = in.buffer.data(),
                            .offsets = c.offsets,
                            .dtype = c.dtype,
                            .wire = c.wire,
                            .scale = c.scale});
    if (!c.in_place) {
        EXPECT_EQ(in.get(stream), mine) << "the input was changed";
    }
    return result.get(stream);
}

std::vector<char> reduce_scatter(Collectives& how, Stream& stream, const Case& c,
                                 float (*value)(int, int64_t) = exact_value) {
    const int64_t n = c.offsets.back(), first = c.offsets[size_t(how.rank())],
                  own = c.offsets[size_t(how.rank()) + 1] - first;
    const auto mine = values_of(how.rank(), c, value);
    Memory in(how.transport().device(), n * size_of(c.dtype));
    Memory out(how.transport().device(), c.in_place ? 0 : own * size_of(c.out));
    in.set(stream, mine);
    if (!c.in_place) out.set(stream, nans(own, c.out));
    const int64_t at = first * size_of(c.dtype), length = own * size_of(c.dtype);
    how.reduce_scatter(stream, {.out = c.in_place ? in.buffer.bytes_at(at) : out.buffer.data(),
                                .in = in.buffer.data(),
                                .offsets = c.offsets,
                                .dtype = c.dtype,
                                .wire = c.wire,
                                .out_dtype = c.in_place ? c.dtype : c.out,
                                .scale = c.scale});
    auto after = in.get(stream);
    std::vector<char> result =
        c.in_place ? std::vector<char>(after.begin() + at, after.begin() + at + length) : out.get(stream);
    if (c.in_place) std::copy(mine.begin() + at, mine.begin() + at + length, after.begin() + at);
    EXPECT_EQ(after, mine) << "values outside this rank's slice were changed";
    return result;
}

std::vector<char> all_gather(Collectives& how, Stream& stream, const Case& c) {
    const int64_t n = c.offsets.back(), first = c.offsets[size_t(how.rank())],
                  own = c.offsets[size_t(how.rank()) + 1] - first, size = size_of(c.dtype);
    const auto mine = values_of(how.rank(), c);
    Memory out(how.transport().device(), n * size), in(how.transport().device(), own * size);
    auto start = nans(n, c.dtype);
    const std::vector<char> slice(mine.begin() + first * size, mine.begin() + (first + own) * size);
    if (c.in_place) std::copy(slice.begin(), slice.end(), start.begin() + first * size);
    out.set(stream, start);
    in.set(stream, slice);
    how.all_gather(stream, {.out = out.buffer.data(),
                            .in = c.in_place ? out.buffer.bytes_at(first * size) : in.buffer.data(),
                            .offsets = c.offsets,
                            .dtype = c.dtype});
    return out.get(stream);
}

// The plain loop's result; exact values only.
std::vector<float> expected_sum(const Case& c, int size) {
    std::vector<float> sum(static_cast<size_t>(c.offsets.back()), 0.0f);
    for (int r = 0; r < size; ++r)
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += exact_value(r, int64_t(i));
    for (float& s : sum) s *= c.scale;
    return sum;
}

class CollectivesTest : public testing::Test {
   protected:
    Collectives& algorithm(const std::string& name) {
        auto& slot = made_[name];
        if (!slot)
            slot = make_collectives(parse_name<Algorithm>("algorithm", name), world(),
                                    {.chunk_bytes = kChunk, .lanes = 2});
        return *slot;
    }

    void check_all(const Case& c) {
        const int N = world().size(), rank = world().rank();
        const int64_t n = c.offsets.back(), first = c.offsets[size_t(rank)], own = c.offsets[size_t(rank) + 1] - first;
        const auto sum = expected_sum(c, N);
        const std::vector<float> own_sum(sum.begin() + first, sum.begin() + first + own);
        const auto library_sum = all_reduce(algorithm("library"), stream_, c);
        ASSERT_EQ(to_floats(library_sum.data(), n, c.dtype), to_floats(to_bytes(sum, c.dtype).data(), n, c.dtype));
        for (const char* name : {"ring", "direct"}) {
            SCOPED_TRACE(name);
            Collectives& how = algorithm(name);
            ASSERT_EQ(all_reduce(how, stream_, c), library_sum);
            const DType out = c.in_place ? c.dtype : c.out;
            ASSERT_EQ(reduce_scatter(how, stream_, c), to_bytes(own_sum, out));
            const auto gathered = all_gather(how, stream_, c);
            for (int r = 0; r < N; ++r) {
                const auto theirs = values_of(r, c);
                const int64_t at = c.offsets[size_t(r)] * size_of(c.dtype),
                              end = c.offsets[size_t(r) + 1] * size_of(c.dtype);
                ASSERT_TRUE(std::equal(gathered.begin() + at, gathered.begin() + end, theirs.begin() + at))
                    << "slice " << r;
            }
        }
        ASSERT_EQ(reduce_scatter(algorithm("library"), stream_, c), to_bytes(own_sum, c.in_place ? c.dtype : c.out));
        const auto gathered = all_gather(algorithm("library"), stream_, c),
                   ring = all_gather(algorithm("ring"), stream_, c);
        ASSERT_EQ(gathered, ring);
    }

    // The ranks of a group, a bit each.
    int total(Collectives& group) {
        Memory value(test_device(), 4);
        value.set(stream_, to_bytes({float(1 << world().rank())}, DType::f32));
        const auto offsets = even_offsets(1, group.size());
        group.all_reduce(stream_, sum_in_place(value.buffer.data(), offsets));
        return int(to_floats(value.get(stream_).data(), 1, DType::f32)[0]);
    }

    std::map<std::string, std::unique_ptr<Collectives>> made_;
    Stream stream_{test_device(), "test"};
};

TEST_F(CollectivesTest, AnySizeGivesTheExactSums) {
    const int64_t N = world().size(), chunk = kChunk / 4;
    for (int64_t n : {int64_t(0), int64_t(1), N - 1, N, N + 1, int64_t(7), int64_t(97), int64_t(1009), chunk - 1, chunk,
                      chunk + 1, N * chunk - 1, N * chunk, N * chunk + 1, 2 * N * chunk + 3, int64_t(10007)})
        for (bool in_place : {false, true}) {
            SCOPED_TRACE(testing::Message() << n << " elements" << (in_place ? ", in place" : ""));
            check_all({.offsets = even_offsets(n, int(N)), .in_place = in_place});
            if (HasFatalFailure()) return;
        }
}

// The slices of a unit, as ZeRO cuts it: MPI's collectives for equal parts where they are equal, else those with a
// count for each rank. The first slice may begin after the first element.
TEST_F(CollectivesTest, EqualSlicesOfAUnitUseTheCollectivesForEqualParts) {
    const int N = world().size();
    if (transport_kind() == TransportKind::nccl || N == 1) GTEST_SKIP() << "of MPI, between ranks";
    int64_t step = 16 * 1024;  // of a size that is cut equally
    while (step % (16 * N) != 0) step += 16 * 1024;
    const auto calls = [&](const Case& c) {
        called.by_name.clear();
        check_all(c);
        return called.by_name;
    };
    for (const bool in_place : {false, true}) {
        const UnitLayout equal = make_unit("unit", 0, step - 16, N), dear = make_unit("unit", 0, 256 * N + 256, N);
        ASSERT_TRUE(equal.equal && !dear.equal);
        const auto of_equal = calls({.offsets = equal.slice_offsets(N), .in_place = in_place});
        EXPECT_EQ(of_equal, (std::map<std::string, int>{{"allgather", 1}, {"reduce_scatter_block", 1}}));
        const auto of_dear = calls({.offsets = dear.slice_offsets(N), .in_place = in_place});
        EXPECT_EQ(of_dear, (std::map<std::string, int>{{"allgatherv", 1}, {"reduce_scatter", 1}}));
    }
    std::vector<int64_t> later = even_offsets(64 * N, N);
    for (int64_t& o : later) o += 7;
    Collectives &library = algorithm("library"), &ring = algorithm("ring");
    called.by_name.clear();
    EXPECT_EQ(reduce_scatter(library, stream_, {.offsets = later}), reduce_scatter(ring, stream_, {.offsets = later}));
    EXPECT_EQ(all_gather(library, stream_, {.offsets = later}), all_gather(ring, stream_, {.offsets = later}));
    EXPECT_EQ(called.by_name, (std::map<std::string, int>{{"allgather", 1}, {"reduce_scatter_block", 1}}));
}

TEST_F(CollectivesTest, SeveralMebibytesInTheDefaultChunks) {
    const Case c{.offsets = even_offsets((3 << 20) / 4 + 3, world().size(), 64)};
    const auto library = all_reduce(algorithm("library"), stream_, c);
    for (const char* name : {"ring", "direct"})
        for (int lanes : {1, 2}) {
            auto how = make_collectives(parse_name<Algorithm>("algorithm", name), world(),
                                        {.chunk_bytes = 1 << 20, .lanes = lanes});
            ASSERT_EQ(all_reduce(*how, stream_, c), library) << name << ", " << lanes << " lanes";
        }
}

// Slices of any length, empty ones too, and every wire type, from a seed that all ranks share.
TEST_F(CollectivesTest, RandomSlicesAndTypesGiveTheExactSums) {
    const int N = world().size();
    std::mt19937 random(1234);
    constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
    for (int round = 0; round < 16; ++round) {
        Case c;
        c.offsets = {int64_t(0)};
        for (int r = 0; r < N; ++r)
            c.offsets.push_back(c.offsets.back() +
                                (random() % 4 == 0 ? 0 : int64_t(random() % (round % 3 == 0 ? 5000 : 50))));
        c.dtype = kTypes[random() % 3];
        c.wire = kTypes[random() % 3];
        c.out = kTypes[random() % 3];
        c.in_place = random() % 2;
        c.scale = random() % 2 ? 1.0f : 0.5f;  // exact for these values in every type
        SCOPED_TRACE(testing::Message() << "round " << round << ", " << c.offsets.back() << " elements of "
                                        << name_of(c.dtype) << " over " << name_of(c.wire) << " to " << name_of(c.out));
        check_all(c);
        if (HasFatalFailure()) return;
    }
}

// The promise that ZeRO stands on: an all-reduce is a reduce-scatter and an all-gather over the same slices, whatever
// the chunks and lanes, on values whose sum depends on the order.
TEST_F(CollectivesTest, SameBitsForAllStages) {
    const int N = world().size();
    Case c{.offsets = even_offsets(6007, N, 64)};
    const int64_t first = c.offsets[size_t(world().rank())], own = c.offsets[size_t(world().rank()) + 1] - first;
    for (const char* name : {"ring", "direct"})
        for (DType wire : {DType::f32, DType::bf16}) {
            c.wire = wire;
            c.scale = 1.0f / float(N);
            const auto reference = all_reduce(algorithm(name), stream_, c, rough_value);
            const std::vector<char> own_reference(reference.begin() + first * 4, reference.begin() + (first + own) * 4);
            for (int64_t chunk : {256, 1024, 100000})
                for (int lanes : {1, 3}) {
                    auto how = make_collectives(parse_name<Algorithm>("algorithm", name), world(),
                                                {.chunk_bytes = chunk, .lanes = lanes});
                    ASSERT_EQ(all_reduce(*how, stream_, c, rough_value), reference)
                        << name << " " << chunk << " " << lanes;
                    ASSERT_EQ(reduce_scatter(*how, stream_, c, rough_value), own_reference) << name << " " << chunk;
                }
        }
}

// The order of summation is what the header says, to the bit.
TEST_F(CollectivesTest, SumsAreInTheOrderThatIsPromised) {
    const int N = world().size();
    const Case c{.offsets = even_offsets(5003, N)};
    std::vector<float> ring(5003), direct(5003);
    for (int owner = 0; owner < N; ++owner)
        for (int64_t i = c.offsets[size_t(owner)]; i < c.offsets[size_t(owner) + 1]; ++i) {
            volatile float sum = rough_value((owner + 1) % N, i);
            for (int d = 2; d <= N; ++d) sum = sum + rough_value((owner + d) % N, i);
            ring[size_t(i)] = sum;
            volatile float ascending = rough_value(0, i);
            for (int r = 1; r < N; ++r) ascending = ascending + rough_value(r, i);
            direct[size_t(i)] = ascending;
        }
    EXPECT_EQ(all_reduce(algorithm("ring"), stream_, c, rough_value), to_bytes(ring, DType::f32));
    EXPECT_EQ(all_reduce(algorithm("direct"), stream_, c, rough_value), to_bytes(direct, DType::f32));
    if (N >= 3) {
        EXPECT_NE(ring, direct) << "these values do not show the order, so the test proves nothing";
    }
}

// Direct: bits do not depend on the slices.
TEST_F(CollectivesTest, DirectBitsAreIndependentOfSlices) {
    const int N = world().size();
    std::vector<int64_t> skewed(size_t(N) + 1, 6007);
    skewed[0] = 0;
    const Case even{.offsets = even_offsets(6007, N)}, all_on_one{.offsets = skewed};
    EXPECT_EQ(all_reduce(algorithm("direct"), stream_, even, rough_value),
              all_reduce(algorithm("direct"), stream_, all_on_one, rough_value));
}

TEST_F(CollectivesTest, BroadcastGivesEveryRankTheBytesOfTheRoot) {
    const int N = world().size();
    for (const char* name : {"ring", "direct", "library"})
        for (int64_t bytes : {int64_t(0), int64_t(1), kChunk - 1, kChunk, 5 * kChunk + 17})
            for (int root : {0, N - 1}) {
                std::vector<char> want(static_cast<size_t>(bytes));
                for (size_t i = 0; i < want.size(); ++i) want[i] = char(i * 31 + size_t(root));
                Memory data(test_device(), bytes);
                data.set(stream_, world().rank() == root ? want : std::vector<char>(want.size(), 0x55));
                algorithm(name).broadcast(stream_, data.buffer.data(), bytes, root);
                ASSERT_EQ(data.get(stream_), want) << name << " " << bytes << " bytes from " << root;
            }
}

// Nobody passes the barrier before the last one has come to it, by the clock that the ranks of one machine share.
TEST_F(CollectivesTest, BarrierHoldsEveryRankUntilTheLastHasCome) {
    const int N = world().size();
    auto& how = algorithm("ring");
    const auto now = [] { return int64_t(std::chrono::steady_clock::now().time_since_epoch().count()); };
    for (int round = 0; round < 3; ++round)
        for (int late = 0; late < N; ++late) {
            if (world().rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
            const int64_t came = now();
            how.barrier(stream_);
            stream_.synchronize();
            const int64_t left = now();
            int64_t came_last = came;
            test_process().broadcast(&came_last, sizeof came_last, late);
            EXPECT_GE(left, came_last) << "rank " << late << " came late";
        }
}

// The bytes that the paper's formulas count: (N-1)/N of the range for a half, twice that for an all-reduce.
TEST_F(CollectivesTest, BytesSentAreThoseOfTheFormulas) {
    const int N = world().size();
    const int64_t n = 1000 * N;
    const Case c{.offsets = even_offsets(n, N)};
    for (const char* name : {"ring", "direct", "library"}) {
        int64_t before = world().bytes_sent();
        reduce_scatter(algorithm(name), stream_, c);
        EXPECT_EQ(world().bytes_sent() - before, n * 4 / N * (N - 1)) << name;
        before = world().bytes_sent();
        all_gather(algorithm(name), stream_, c);
        EXPECT_EQ(world().bytes_sent() - before, n * 4 / N * (N - 1)) << name;
        before = world().bytes_sent();
        all_reduce(algorithm(name), stream_, c);
        EXPECT_EQ(world().bytes_sent() - before, 2 * n * 4 / N * (N - 1)) << name;
    }
}

// Two groups' collectives at once on two streams (comm/mesh.h says where that may be). On the CPU every other rank
// enqueues them in the other order: would either stream wait for the other's group, this would hang.
TEST_F(CollectivesTest, TwoGroupsAtOnceGiveTheExactSums) {
    auto& process = test_process();
    if (test_device().is_cuda() && std::string(world().name()) == "mpi")
        GTEST_SKIP() << "staged groups belong on one stream (comm/mesh.h)";
    auto second_transport = process.make_transport(transport_kind(), test_device(), 0, process.rank(), "second");
    auto second = make_collectives(Algorithm::ring, *second_transport, {.chunk_bytes = kChunk, .lanes = 2});
    Stream other(test_device(), "other");
    const Case c{.offsets = even_offsets(100003, world().size(), 64)};
    const auto mine = values_of(world().rank(), c);
    Memory a(test_device(), int64_t(mine.size())), b(test_device(), int64_t(mine.size()));
    a.set(stream_, mine);
    b.set(stream_, mine);
    for (int round = 0; round < 3; ++round) {
        const AllReduce first = sum_in_place(a.buffer.data(), c.offsets),
                        then = sum_in_place(b.buffer.data(), c.offsets);
        const bool other_first = !test_device().is_cuda() && process.rank() % 2 == 1;
        if (other_first) second->all_reduce(other, then);
        algorithm("ring").all_reduce(stream_, first);
        if (!other_first) second->all_reduce(other, then);
    }
    other.synchronize();
    const auto one = a.get(stream_), two = b.get(stream_);
    EXPECT_EQ(one, two);
    const double factor = std::pow(double(world().size()), 2);
    const auto sum = expected_sum(c, world().size());
    const auto got = to_floats(one.data(), c.offsets.back(), DType::f32);
    for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(got[i], float(sum[i] * factor));
    stream_.synchronize();
}

// A mesh of 2-D groups: every row sums over its columns, every column over its rows, and both together over all.
TEST_F(CollectivesTest, MeshRowsAndColumnsSumOverTheirOwnRanks) {
    auto& process = test_process();
    for (int shard = 1; shard <= process.size(); ++shard) {
        if (process.size() % shard != 0) continue;
        Mesh mesh(process, test_device(), {.grid = {.shard_size = shard}, .transport = mesh_transport()});
        EXPECT_EQ(mesh.shard().size(), shard);
        EXPECT_EQ(mesh.replicate().size(), process.size() / shard);
        EXPECT_EQ(mesh.shard().rank(), process.rank() % shard);
        EXPECT_EQ(mesh.replicate().rank(), process.rank() / shard);
        int row = 0, column = 0;
        for (int r = 0; r < process.size(); ++r) {
            if (r / shard == process.rank() / shard) row |= 1 << r;
            if (r % shard == process.rank() % shard) column |= 1 << r;
        }
        EXPECT_EQ(total(mesh.shard()), row);
        EXPECT_EQ(total(mesh.replicate()), column);
        EXPECT_EQ(total(mesh.data()), (1 << process.size()) - 1);
    }
    EXPECT_THROW(Mesh(process, test_device(), {.grid = {.shard_size = process.size() + 1}}), Error);
}

// All axes at once, with pp outermost and tp innermost: each group sums over its own ranks, and a token goes around
// every line of the pp axis, in both directions at once.
TEST_F(CollectivesTest, MeshAxesSumAndLinksCarry) {
    auto& process = test_process();
    const int N = process.size();
    for (const auto& [tp, pp] : {std::pair(1, N), {N, 1}, {2, 2}, {1, 2}, {2, 3}}) {
        if (N % (tp * pp) != 0) {
            EXPECT_THROW(Grid(N, {.tp = tp, .pp = pp}), Error);
            continue;
        }
        Mesh mesh(process, test_device(), {.grid = {.tp = tp, .pp = pp}, .transport = mesh_transport()});
        const int dp = N / tp / pp, rank = process.rank(), t = rank % tp, d = rank / tp % dp, p = rank / tp / dp;
        int tps = 0, dps = 0, pps = 0, models = 0;
        for (int r = 0; r < N; ++r) {
            const bool same_t = r % tp == t, same_d = r / tp % dp == d, same_p = r / tp / dp == p;
            tps |= (same_d && same_p) << r, dps |= (same_t && same_p) << r;
            pps |= (same_t && same_d) << r, models |= same_d << r;
        }
        EXPECT_EQ(total(mesh.tp()), tps);
        EXPECT_EQ(total(mesh.data()), dps);
        EXPECT_EQ(total(mesh.pp()), pps);
        EXPECT_EQ(total(mesh.model()), models);
        if (pp == 1 || test_device().is_cuda()) continue;
        const int next = (p + 1) % pp, previous = (p + pp - 1) % pp;
        int up = rank, down = 1000 + rank;
        const auto pass_on = [&](int& token, Link& from, Link& to) {
            if (p != 0) from.recv(&token, 4);
            to.stream().wait(from.stream().record());
            to.send(&token, 4);
            if (p == 0) from.recv(&token, 4);
        };
        pass_on(up, mesh.link_from(previous), mesh.link_to(next));
        if (pp > 2) pass_on(down, mesh.link_from(next), mesh.link_to(previous));
        for (const int peer : {next, previous}) {
            mesh.link_to(peer).stream().synchronize();
            mesh.link_from(peer).stream().synchronize();
        }
        EXPECT_EQ(up, t + tp * d) << "the first stage's rank";
        if (pp > 2) {
            EXPECT_EQ(down, 1000 + t + tp * d);
        }
    }
}

TEST_F(CollectivesTest, MeterSeesCallsBytesAndExposedTime) {
    if (world().size() == 1) GTEST_SKIP() << "one rank sends nothing";
    CommMeter meter;
    auto how = make_collectives(Algorithm::ring, world(), {.chunk_bytes = kChunk, .lanes = 2, .meter = &meter});
    Stream compute(test_device(), "compute");
    const Case c{.offsets = even_offsets(int64_t(world().size()) << 16, world().size())};
    Memory data(test_device(), c.offsets.back() * 4);
    data.set(stream_, values_of(world().rank(), c));
    how->all_reduce(stream_, sum_in_place(data.buffer.data(), c.offsets));
    meter.wait(compute, stream_.record());  // nothing to overlap with: all of it is exposed, but for the head start
    const CommTotals totals = meter.take();
    EXPECT_EQ(totals.ops.at("all_reduce").calls, 1);
    const int64_t N = world().size();
    EXPECT_EQ(totals.bytes_sent, 2 * c.offsets.back() * 4 * (N - 1) / N);
    EXPECT_GT(totals.total_s, 0);
    EXPECT_GT(totals.exposed_s, 0);
    EXPECT_EQ(meter.take().total_s, 0);
    compute.synchronize();
}

// How often each of rank 0's threads asked MPI, ascending, once all `lanes` have and some time has passed.
std::vector<int64_t> times_asked(size_t lanes) {
    constexpr int64_t kMany = 20000;
    const auto start = std::chrono::steady_clock::now();
    for (;;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        std::vector<int64_t> calls;
        const std::lock_guard lock(asked.mutex);
        for (const auto& [thread, n] : asked.by_thread) calls.push_back(n);
        std::sort(calls.begin(), calls.end());
        if (calls.size() == lanes && calls.back() >= kMany) return calls;
        if (std::chrono::steady_clock::now() - start > std::chrono::seconds(20)) return calls;
    }
}

TEST(MpiTransport, OneThreadAsksForAllLanesThatWait) {
    Process& process = test_process();
    if (process.size() == 1) GTEST_SKIP() << "one rank sends nothing";
    constexpr size_t kLanes = 5;
    const int rank = process.rank();
    std::vector<std::unique_ptr<Transport>> transports;
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<int> values(kLanes, rank == 1 ? 42 : 0);
    for (size_t l = 0; l < kLanes; ++l) {
        transports.push_back(process.make_transport(TransportKind::mpi, {DeviceKind::cpu, 0}, 0, rank, "lane"));
        streams.push_back(std::make_unique<Stream>(Device{DeviceKind::cpu, 0}, "lane"));
    }
    if (rank == 0) {
        {
            const std::lock_guard lock(asked.mutex);
            asked.by_thread.clear(), asked.counts = true;
        }
        for (size_t l = 0; l < kLanes; ++l) transports[l]->recv(*streams[l], &values[l], sizeof(int), 1);
        std::vector<int64_t> calls = times_asked(kLanes);
        ASSERT_FALSE(calls.empty());
        EXPECT_GT(calls.back(), 1000) << "nobody asks";
        calls.pop_back();
        EXPECT_EQ(calls, std::vector<int64_t>(kLanes - 1, 1)) << "the others ask once, before they wait";
        const std::lock_guard lock(asked.mutex);
        asked.counts = false;
    }
    process.barrier();
    for (size_t l = 0; rank == 1 && l < kLanes; ++l) transports[l]->send(*streams[l], &values[l], sizeof(int), 0);
    for (const auto& stream : streams) stream->synchronize();
    if (rank == 0) {
        EXPECT_EQ(values, std::vector<int>(kLanes, 42));
    }
}

TEST(ControlPlane, SumMaxBroadcastAndTextsAreTheSameOnEveryRank) {
    Process& process = test_process();
    const int N = process.size();
    EXPECT_EQ(process.sum(1.5), 1.5 * N);
    EXPECT_EQ(process.max(process.rank()), N - 1);
    int value = process.rank() == N - 1 ? 42 : 0;
    process.broadcast(&value, sizeof value, N - 1);
    EXPECT_EQ(value, 42);
    const auto texts = process.all_gather_text(std::string(size_t(process.rank()), 'x'));
    for (int r = 0; r < N; ++r) EXPECT_EQ(texts[size_t(r)], std::string(size_t(r), 'x'));
    EXPECT_LT(process.local_rank(), process.local_size());
}

TEST(Transport, RefusesWhatItCannotDo) {
    Stream stream(test_device(), "test");
    char byte = 0;
    EXPECT_THROW(world().send(stream, &byte, 1, world().size()), Error);
    EXPECT_THROW(world().send(stream, &byte, 1, world().rank()), Error) << "a message to oneself without its recv";
    EXPECT_THROW(parse_name<Algorithm>("algorithm", "rings"), Error);
    EXPECT_THROW(parse_name<TransportKind>("transport", "udp"), Error);
    auto how = make_collectives(Algorithm::ring, world());
    std::vector<int64_t> wrong(size_t(world().size()) + 2, 0);
    EXPECT_THROW(how->all_gather(stream, {.out = &byte, .in = &byte, .offsets = wrong, .dtype = DType::f32}), Error);
}

}  // namespace
}  // namespace rz
