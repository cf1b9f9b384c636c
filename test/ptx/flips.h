// PTX_FLIP=name turns one property of the models (test/simt/models.h) wrong: which tests notice?
#pragma once

#include <string>

namespace ptx {

int flip_count();  // with 0, which is none
const char* flip_name(int flip);
void set_flip(int flip);
void set_flip(const std::string& name);  // throws if there is no such name

}  // namespace ptx
