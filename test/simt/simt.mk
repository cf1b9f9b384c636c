# The emulator: the kernels and the CUDA path of the program, run on a machine with no GPU. Included by the top Makefile.
#
#   make simt              all of the below
#   make simt-kernels      the kernel tests (test/kernel_*.cpp): plain with several seeds, ASan+UBSan, race
#   make simt-selftest     the emulator's own tests, the planted bugs, the fidelity list
#   make simt-lint         the rules that kernel sources keep
#   make simt-coverage     which kernels ran, and how often; fails if one never did
#   make train_llama_simt  the program, its CUDA path on the emulator
#
# Everything is built from the same sources three times, under $(BUILD)/simt/{plain,asan,race}.

SIMT_SEEDS    ?= 1 2 3
SIMT_CUDA_INC ?= $(or $(CUDA_HOME),/usr/local/cuda)/include
SIMT          := $(BUILD)/simt
SIMT_CONFIGS  := plain asan race
SIMT_COUNTS   := $(abspath $(SIMT))/counts.txt

# -fno-strict-aliasing: kernels read uint4 as bf16 pairs, which nvcc allows. -fno-omit-frame-pointer: reports name frames.
SIMT_BASE := -std=c++20 -g1 -Wall -Wextra -Wno-psabi -Wno-unknown-pragmas -I. -isystem $(SIMT_CUDA_INC) -MMD -MP \
             -fno-strict-aliasing -fno-omit-frame-pointer -DRZ_CUDA -DSIMT_EMU -DSIMT_SOURCE_ROOT='"$(CURDIR)"' $(DEFS)
SIMT_OPT.plain  := -O2
SIMT_OPT.asan   := -O1 -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined
SIMT_OPT.race   := -O1
# What only the kernels get.
SIMT_KOPT.plain :=
SIMT_KOPT.asan  := -ftrivial-auto-var-init=pattern
SIMT_KOPT.race  := -fsanitize=thread --param tsan-instrument-func-entry-exit=0
# The host half of the program is not what the race build is about.
SIMT_HOPT.plain := -O2 -fopenmp
SIMT_HOPT.asan  := $(SIMT_OPT.asan) -fopenmp
SIMT_HOPT.race  := -O2 -fopenmp

SIMT_RUNTIME := stack scheduler barrier warp shared copy tensor_core hopper coverage fake_cudart fake_cublaslt
SIMT_HOST    := $(filter-out %_nccl.cpp,$(sort $(wildcard kernels/runtime/*.cpp kernels/*.cpp comm/*.cpp zero/*.cpp llama/*.cpp)))
SIMT_KERNELS := $(sort $(wildcard kernels/*.cu))
SIMT_LIBS    := $(LIBS) -ldl -pthread

# simt_rules(config)
define simt_rules
$(SIMT)/$(1)/k/%.o: %.cu
	@mkdir -p $$(@D)
	$$(CXX) -x c++ $(SIMT_BASE) $(SIMT_OPT.$(1)) $(SIMT_KOPT.$(1)) -c -o $$@ $$<
$(SIMT)/$(1)/rt/%.o: test/simt/%.cpp
	@mkdir -p $$(@D)
	$$(CXX) $(SIMT_BASE) $(SIMT_OPT.$(1)) -c -o $$@ $$<
$(SIMT)/$(1)/h/%.o: %.cpp
	@mkdir -p $$(@D)
	$$(CXX) $(SIMT_BASE) $(SIMT_HOPT.$(1)) -c -o $$@ $$<

SIMT_LIB.$(1)    := $(SIMT)/$(1)/libsimt.a
SIMT_RZ.$(1)     := $(SIMT)/$(1)/libringzero.a
$$(SIMT_LIB.$(1)): $(patsubst %,$(SIMT)/$(1)/rt/%.o,$(SIMT_RUNTIME) $(if $(filter race,$(1)),race))
	@rm -f $$@; ar rcs $$@ $$^
$$(SIMT_RZ.$(1)): $(SIMT_HOST:%.cpp=$(SIMT)/$(1)/h/%.o) $(SIMT_KERNELS:%.cu=$(SIMT)/$(1)/k/%.o)
	@rm -f $$@; ar rcs $$@ $$^

$(SIMT)/$(1)/kernel_tests: $(patsubst %.cpp,$(SIMT)/$(1)/h/%.o,$(sort $(wildcard test/kernel_*.cpp))) $(SIMT)/$(1)/libringzero.a $(SIMT)/$(1)/libsimt.a
	$$(CXX) $(SIMT_HOPT.$(1)) -o $$@ $$^ -lgtest_main -lgtest $(SIMT_LIBS)
$(SIMT)/$(1)/self_tests: $(patsubst %,$(SIMT)/$(1)/k/test/simt/%.o,selftest) $(SIMT)/$(1)/h/test/simt/test_selftest.o $(SIMT)/$(1)/h/kernels/runtime/check.o $(SIMT)/$(1)/libsimt.a
	$$(CXX) $(SIMT_HOPT.$(1)) -o $$@ $$^ -lgtest_main -lgtest -ldl -pthread
$(SIMT)/$(1)/planted: $(patsubst %,$(SIMT)/$(1)/k/test/simt/%.o,planted selftest) $(SIMT)/$(1)/h/test/simt/planted_main.o $(SIMT)/$(1)/h/kernels/runtime/check.o $(SIMT)/$(1)/libsimt.a
	$$(CXX) $(SIMT_HOPT.$(1)) -o $$@ $$^ -ldl -pthread
endef
$(foreach c,$(SIMT_CONFIGS),$(eval $(call simt_rules,$(c))))
-include $(shell find $(SIMT) -name '*.d' 2>/dev/null)
