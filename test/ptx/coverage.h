// Reports at the end of a program, where the environment asks for them.
//   PTX_COVERAGE=file   kernels, the loops of each that nothing repeated, the lines that nothing executed
//   PTX_LINES=file      the lines that were executed: kernel (mangled), line, kernel, text
//   PTX_COUNTS=file     issue slots by kind, sectors and bank conflicts, by kernel
#pragma once

namespace ptx {

void write_reports();

}  // namespace ptx
