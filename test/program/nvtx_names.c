// What a profiler of NVTX would see: each range that is pushed, with its depth, goes to the file $NVTX_NAMES. NVTX loads
// this library where NVTX_INJECTION64_PATH names it.
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>

static FILE* file;
static int depth;

static int push(const char* name) {
    fprintf(file, "%d %s\n", depth, name);
    fflush(file);
    return depth++;
}
static int pop(void) { return --depth; }

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table_of) {
    const NvtxExportTableCallbacks* table = table_of(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable functions;
    unsigned int size = 0;
    file = fopen(getenv("NVTX_NAMES"), "w");
    if (!file || !table->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &size)) return 0;
    *functions[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
    *functions[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
    return 1;
}
