// The table of data types and the names of enums.

#include <gtest/gtest.h>

#include "comm/collectives.h"
#include "kernels/runtime/dtype.h"
#include "kernels/runtime/names.h"
#include "test/checks.h"

namespace rz {
namespace {

TEST(DType, RowsAreWhatFilesAndLibrariesCallThem) {
    const struct {
        DType type;
        int64_t bytes;
        const char *name, *safetensors, *config_json;
    } want[] = {{DType::f32, 4, "fp32", "F32", "float32"},
                {DType::bf16, 2, "bf16", "BF16", "bfloat16"},
                {DType::f16, 2, "fp16", "F16", "float16"}};
    ASSERT_EQ(std::size(want), std::size(kDTypes));
    for (const auto& w : want) {
        EXPECT_EQ(size_of(w.type), w.bytes);
        EXPECT_EQ(with_dtype(w.type, []<class T>() { return int64_t(sizeof(T)); }), w.bytes);
        EXPECT_STREQ(name_of(w.type), w.name);
        EXPECT_EQ(parse_dtype("--dtype", w.name), w.type);
        EXPECT_EQ(find_dtype(w.safetensors, &DTypeNames::safetensors), w.type);
        EXPECT_EQ(find_dtype(w.config_json, &DTypeNames::config_json), w.type);
        EXPECT_FALSE(find_dtype(w.safetensors, &DTypeNames::name)) << "the columns are apart";
    }
}

TEST(Names, UnknownOnesAreRefusedWithThoseThereAre) {
    EXPECT_EQ(error_of([] { parse_dtype("--dtype", "fp8"); }), "--dtype fp8: it must be one of fp32, bf16, fp16");
    EXPECT_EQ(error_of([] { parse_name<Algorithm>("--algo", "rings"); }),
              "--algo rings: it must be one of ring, direct, library, hier, symmetric, hier-symmetric");
    EXPECT_EQ(parse_name<Algorithm>("--algo", "direct"), Algorithm::direct);
    EXPECT_STREQ(name_of(Algorithm::library), "library");
}

}  // namespace
}  // namespace rz
