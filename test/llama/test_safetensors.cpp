#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "llama/base/safetensors.h"
#include "test/llama/helpers.h"

namespace rz {
namespace {

namespace fs = std::filesystem;

size_t files_in(const TempFolder& f) {
    return size_t(std::distance(fs::directory_iterator(f.path), fs::directory_iterator()));
}
std::string length_prefix(uint64_t n) { return std::string(reinterpret_cast<const char*>(&n), 8); }
std::string file_of(const std::string& header, size_t data_bytes) {
    return length_prefix(header.size()) + header + std::string(data_bytes, '\0');
}
// A header with one I32 tensor "test".
std::string one(const std::string& shape, const std::string& offsets) {
    return R"({"test":{"dtype":"I32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

// "OK <tensors>" or the fault's name.
std::string verdict(const std::string& file) {
    try {
        return "OK " + std::to_string(parse_safetensors(file, "x.safetensors").tensors.size());
    } catch (const SafetensorsError& e) {
        EXPECT_EQ(std::string(e.what()).rfind("x.safetensors: ", 0), 0u) << e.what();
        return name(e.fault);
    }
}

// The reference crate's own vectors.
TEST(SafetensorsReader, AgreesWithTheReferenceOnItsVectors) {
    const std::string h = one("[2,2]", "[0,16]");
    ASSERT_EQ(h.size(), 60u);
    EXPECT_EQ(verdict(file_of(h, 16)), "OK 1");
    EXPECT_EQ(verdict(""), "HeaderTooSmall");
    EXPECT_EQ(verdict(std::string(7, '\0')), "HeaderTooSmall");
    EXPECT_EQ(verdict(length_prefix(60)), "InvalidHeaderLength");
    EXPECT_EQ(verdict(std::string("\x3c\0\0\0\0\xff\xff\xff", 8) + h + std::string(16, '\0')), "HeaderTooLarge");
    EXPECT_EQ(verdict(length_prefix(1) + "\xff"), "InvalidHeader");
    EXPECT_EQ(verdict(length_prefix(1) + "{"), "InvalidHeaderDeserialization");
    EXPECT_EQ(verdict(file_of("{}\r \t\n", 0)), "OK 0");
    EXPECT_EQ(verdict(file_of("\t\n{}\r ", 0)), "OK 0");
    EXPECT_EQ(verdict(file_of(one("[]", "[0,4]"), 4)), "OK 1");
    EXPECT_EQ(verdict(file_of(one("[2,0]", "[0, 0]"), 0)), "OK 1");
    EXPECT_EQ(verdict(file_of(one("[2,2]", "[0, 4]"), 4)), "TensorInvalidInfo");
    EXPECT_EQ(verdict(file_of(h, 16) + "extra_bogus_data_for_polyglot_file"), "MetadataIncompleteBuffer");
    EXPECT_EQ(verdict(file_of(h, 14)), "MetadataIncompleteBuffer");
    EXPECT_EQ(verdict(file_of(one("[2,18446744073709551614]", "[0,16]"), 16)), "ValidationOverflow");
    EXPECT_EQ(verdict(file_of(one("[2,9223372036854775807]", "[0,16]"), 16)), "ValidationOverflow");
    std::string overlapping;
    for (int i = 0; i < 10; ++i)
        overlapping += (i ? "," : "{") + format(R"("t%d":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]})", i);
    EXPECT_EQ(verdict(file_of(overlapping + "}", 16)), "InvalidOffset");
}

TEST(SafetensorsReader, RefusesTheRest) {
    const auto tensor = [](const char* type, const char* shape, const char* offsets) {
        return format(R"({"dtype":"%s","shape":%s,"data_offsets":%s})", type, shape, offsets);
    };
    const auto two = [&](const std::string& a, const std::string& b) { return R"({"a":)" + a + R"(,"b":)" + b + "}"; };
    EXPECT_EQ(verdict(file_of(two(tensor("F32", "[1]", "[0,4]"), tensor("F32", "[1]", "[8,12]")), 12)), "InvalidOffset")
        << "a hole";
    EXPECT_EQ(verdict(file_of(two(tensor("F32", "[1]", "[4,8]"), tensor("F32", "[1]", "[0,4]")), 8)), "OK 2")
        << "names in another order than the data";
    EXPECT_EQ(verdict(file_of(one("[1]", "[4,8]"), 8)), "InvalidOffset") << "does not begin at 0";
    EXPECT_EQ(verdict(file_of(one("[1]", "[4,0]"), 4)), "InvalidOffset") << "ends before it begins";
    EXPECT_EQ(verdict(file_of(one("[1]", "[0,18446744073709551615]"), 4)), "InvalidOffset");
    EXPECT_EQ(verdict(file_of(one("[0,18446744073709551615]", "[0,0]"), 0)), "ValidationOverflow");
    EXPECT_EQ(verdict(file_of(R"({"a":)" + tensor("F4", "[3]", "[0,2]") + "}", 2)), "MisalignedSlice");
    EXPECT_EQ(verdict(file_of(R"({"a":)" + tensor("F6_E2M3", "[4]", "[0,3]") + "}", 3)), "OK 1");
    EXPECT_EQ(verdict(file_of(two(tensor("F32", "[1]", "[0,4]"), tensor("BF16", "[2,2]", "[4,12]")), 12)), "OK 2");
    for (const char* header : {
             "[]",
             "7",
             "{} x",
             R"({"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},)"
             R"("a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})",
             R"({"a":{"dtype":"I32","dtype":"I32","shape":[1],"data_offsets":[0,4]}})",
             R"({"a":{"dtype":"I33","shape":[1],"data_offsets":[0,4]}})",
             R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})",
             R"({"a":{"dtype":"I32","shape":[-1],"data_offsets":[0,4]}})",
             R"({"a":{"dtype":"I32","shape":[1.0],"data_offsets":[0,4]}})",
             R"({"a":{"dtype":"I32","shape":1,"data_offsets":[0,4]}})",
             R"({"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4,8]}})",
             R"({"a":{"dtype":"I32","shape":[1],"data_offsets":[0]}})",
             R"({"a":{"dtype":"I32","shape":[1]}})",
             R"({"a":null})",
             R"({"__metadata__":{"format":1}})",
             R"({"__metadata__":"pt"})",
         })
        EXPECT_EQ(verdict(file_of(header, 4)), "InvalidHeaderDeserialization") << header;
    for (const char* utf8 :
         {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80", "\xf8\x88\x80\x80\x80"})
        EXPECT_EQ(verdict(file_of(std::string("{\"") + utf8 + "\":1}", 0)), "InvalidHeader");
    EXPECT_EQ(verdict(file_of("{\"__metadata__\":{\"h\xc3\xa9\":\"\xf0\x9f\xa6\x99\"}}", 0)), "OK 0");
}

constexpr const char* kGoldenHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
    R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]}})";

std::string golden_file() {
    const std::string data("\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x80\x40\x80\x3f\x00\x40\x40\x40",
                           22);
    std::string header = kGoldenHeader;
    header.resize(144, ' ');
    return length_prefix(144) + header + data;
}

TEST(SafetensorsReader, ReadsAndConvertsTheGoldenFile) {
    const TempFolder folder;
    write_file_atomically(folder / "golden.safetensors", golden_file());
    const Safetensors file(folder / "golden.safetensors");
    ASSERT_EQ(file.tensors().size(), 2u);
    EXPECT_EQ(file.metadata().at("format"), "pt");
    EXPECT_EQ(file.find("c"), nullptr);
    const StoredTensor& a = *file.find("a");
    const StoredTensor& b = *file.find("b");
    EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 2}));
    EXPECT_EQ(a.dtype(), DType::f32);
    float values[4] = {NAN, NAN, NAN, NAN};
    file.read(a, 0, 4, DType::f32, values);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(values[i], float(i + 1));
    file.read(b, 1, 2, DType::f32, values);
    EXPECT_EQ(values[0], 2);
    EXPECT_EQ(values[1], 3);
    bf16 narrow[4];
    file.read(a, 0, 4, DType::bf16, narrow);
    EXPECT_EQ(narrow[3].bits, 0x4080);
    f16 half[3];
    file.read(b, 0, 3, DType::f16, half);
    EXPECT_EQ(float(half[2]), 3);
    EXPECT_THROW(file.read(a, 1, 4, DType::f32, values), Error);
    EXPECT_THROW(file.read(a, -1, 1, DType::f32, values), Error);
}

TEST(SafetensorsReader, ConversionsRoundToNearestEvenOnce) {
    // bf16 keeps 8 significant bits: the neighbours of 1 are 1 + 2^-7; halfway goes to the even one.
    const float in[] = {1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1 + 0x1p-8f + 0x1p-20f, -0.0f, 0x1p-130f};
    bf16 out[5];
    convert(in, DType::f32, out, DType::bf16, 5, "x");
    EXPECT_EQ(float(out[0]), 1);
    EXPECT_EQ(float(out[1]), 1 + 0x1p-6f);
    EXPECT_EQ(float(out[2]), 1 + 0x1p-7f);
    EXPECT_EQ(out[3].bits, 0x8000);
    EXPECT_EQ(float(out[4]), 0x1p-130f);
    f16 half[1];
    const float big[] = {65520.0f}, infinite[] = {INFINITY}, largest[] = {65504.0f};
    EXPECT_THROW(convert(big, DType::f32, half, DType::f16, 1, "x"), Error);
    convert(infinite, DType::f32, half, DType::f16, 1, "x");
    convert(largest, DType::f32, half, DType::f16, 1, "x");
    EXPECT_EQ(float(half[0]), 65504);
}

TEST(SafetensorsReader, EveryHalfWidensToItsValue) {
    std::vector<uint16_t> bits(1 << 16);
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = uint16_t(i);
    std::vector<float> wide(bits.size(), NAN);
    convert(bits.data(), DType::f16, wide.data(), DType::f32, int64_t(bits.size()), "x");
    for (size_t i = 0; i < bits.size(); ++i) {
        const int exponent = int(i >> 10) & 31, fraction = int(i) & 1023;
        const double sign = i >> 15 ? -1 : 1;
        if (exponent == 31 && fraction != 0) {
            EXPECT_TRUE(std::isnan(wide[i])) << i;
            continue;
        }
        const double value = exponent == 31  ? INFINITY
                             : exponent == 0 ? std::ldexp(fraction, -24)
                                             : std::ldexp(1024 + fraction, exponent - 25);
        ASSERT_EQ(wide[i], sign * value) << i;
        ASSERT_EQ(std::signbit(wide[i]), i >> 15 != 0) << i;
    }
}

TEST(SafetensorsReader, NamesTypesThatAreNoWeights) {
    const TempFolder folder;
    write_file_atomically(folder / "i32.safetensors", file_of(one("[2,2]", "[0,16]"), 16));
    const Safetensors file(folder / "i32.safetensors");
    float out[4];
    EXPECT_TRUE(says(error_of([&] { file.read(file.tensors()[0], 0, 4, DType::f32, out); }), "I32"));
    EXPECT_THROW(Safetensors(folder / "absent.safetensors"), Error);
}

TEST(SafetensorsWriter, WritesTheGoldenFileByteForByte) {
    const TempFolder folder;
    SafetensorsWriter writer(folder / "out.safetensors", {{"a", "F32", {2, 2}}, {"b", "BF16", {3}}});
    const float a[] = {1, 2, 3, 4};
    const uint16_t b[] = {0x3f80, 0x4000, 0x4040};
    writer.write(1, 0, b, 6);  // any order, any pieces
    writer.write(0, 8, a + 2, 8);
    writer.write(0, 0, a, 8);
    writer.commit();
    EXPECT_EQ(read_file(folder / "out.safetensors"), golden_file());
    EXPECT_EQ(files_in(folder), 1u);
}

TEST(SafetensorsWriter, IncompleteTensorsNeverAppear) {
    const TempFolder folder;
    {
        SafetensorsWriter writer(folder / "out.safetensors", {{"a", "F32", {2, 2}}});
        const float a[] = {1, 2, 3};
        writer.write(0, 0, a, 12);
        EXPECT_THROW(writer.commit(), Error);
        EXPECT_THROW(writer.write(0, 12, a, 8), Error) << "past the end";
    }
    EXPECT_EQ(files_in(folder), 0u) << "nothing, not even the temporary file";
}

TEST(SafetensorsWriter, RefusesWhatReadersRefuse) {
    EXPECT_THROW(layout_safetensors({{"a", "F32", {1}}, {"a", "F32", {1}}}), Error);
    EXPECT_THROW(layout_safetensors({{"a", "F33", {1}}}), Error);
    EXPECT_THROW(layout_safetensors({{"a", "F32", {int64_t(1) << 40, int64_t(1) << 40}}}), Error);
    try {
        layout_safetensors({}, {{"long", std::string(100'000'000, 'x')}});
        FAIL();
    } catch (const SafetensorsError& e) {
        EXPECT_EQ(e.fault, SafetensorsFault::kHeaderTooLarge);
    }
    const SafetensorsLayout layout = layout_safetensors({{"scalar", "F32", {}}, {"empty", "F32", {3, 0}}});
    EXPECT_EQ(layout.header.size() % 8, 0u);
    EXPECT_EQ(layout.file_size, int64_t(layout.header.size()) + 4);
    EXPECT_EQ(verdict(layout.header + std::string(4, '\0')), "OK 2");
}

TEST(SafetensorsReader, ReadsPastFourGigabytes) {
    const TempFolder folder;
    const int64_t n = (int64_t(1) << 30) + 5;  // of fp32: beyond 2^32 bytes
    const SafetensorsLayout layout = layout_safetensors({{"a", "F32", {n}}, {"b", "F32", {2}}});
    write_file_atomically(folder / "sparse.safetensors", layout.header);
    ASSERT_EQ(::truncate((folder / "sparse.safetensors").c_str(), layout.file_size), 0);
    const float mark[] = {7, 8, 9};
    FILE* f = std::fopen((folder / "sparse.safetensors").c_str(), "r+b");
    ASSERT_EQ(::fseeko(f, layout.offsets[1] - 4, SEEK_SET), 0);
    ASSERT_EQ(std::fwrite(mark, 4, 3, f), 3u);
    ASSERT_EQ(std::fclose(f), 0);
    const Safetensors file(folder / "sparse.safetensors");
    float out[2] = {NAN, NAN};
    file.read(*file.find("a"), n - 2, 2, DType::f32, out);
    EXPECT_EQ(out[0], 0);
    EXPECT_EQ(out[1], 7);
    file.read(*file.find("b"), 0, 2, DType::f32, out);
    EXPECT_EQ(out[0], 8);
    EXPECT_EQ(out[1], 9);
}

TEST(AtomicFile, ReplacesWholeOrNotAtAll) {
    const TempFolder folder;
    write_file_atomically(folder / "f", "old");
    {
        AtomicFile file(folder / "f");
        file.append("new, but", 8);
        EXPECT_EQ(read_file(folder / "f"), "old");
    }
    EXPECT_EQ(read_file(folder / "f"), "old");
    EXPECT_EQ(files_in(folder), 1u);
    write_file_atomically(folder / "f", "new");
    EXPECT_EQ(read_file(folder / "f"), "new");
}

TEST(AtomicFile, ErrorsNameTheFileAndLeaveNothing) {
    const TempFolder folder;
    EXPECT_TRUE(says(error_of([&] { write_file_atomically(folder / "no/such/f", "x"); }), "no/such/f"));
    {
        const FileSizeLimit limit(1 << 12);
        EXPECT_TRUE(
            says(error_of([&] { write_file_atomically(folder / "big", std::string(1 << 16, 'x')); }), "ulimit -f"));
    }
    EXPECT_EQ(files_in(folder), 0u);
}

TEST(AtomicFile, MakesFoldersAndRefusesFilesInTheirPlace) {
    const TempFolder folder;
    make_folder(folder / "a/b/c");
    EXPECT_TRUE(fs::is_directory(folder / "a/b/c"));
    make_folder(folder / "a/b/c");
    write_file_atomically(folder / "f", "");
    EXPECT_THROW(make_folder(folder / "f"), Error);
    EXPECT_THROW(make_folder(folder / "f/g"), Error);
}

}  // namespace
}  // namespace rz
