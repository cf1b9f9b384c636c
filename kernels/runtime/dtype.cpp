#include "kernels/runtime/dtype.h"

#include <string>

#include "kernels/runtime/check.h"

namespace rz {

DType parse_dtype(const char* what, std::string_view text) {
    if (const std::optional<DType> t = find_dtype(text, &DTypeNames::name)) return *t;
    std::string all;
    for (const DTypeNames& row : kDTypes) all += (all.empty() ? "" : ", ") + std::string(row.name);
    fail("%s %.*s: it must be one of %s", what, int(text.size()), text.data(), all.c_str());
}

}  // namespace rz
