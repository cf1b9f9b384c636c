# The emulator: the kernels and the CUDA path of the program, run on a machine with no GPU. Included by the top Makefile,
# whose rules for $(OBJ)/%.o and variables (CXX, BUILD, OBJ, DEFS, CUDA_DEFS, LIBS, COMMIT) it uses.
#
#   make simt              build and run all of the below
#   make simt-lint         the rules that kernel sources keep
#   make simt-selftest     the emulator's own tests, the planted bugs, the models against the goldens
#   make simt-kernels      test/*/kernel_*.cpp, and which kernels they ran
#   make simt-race         the same tests in the race build, of make test-full
#   make test-asan         the same tests under ASan and UBSan (ten minutes of two cores)
#   make train_llama_simt  the program, its CUDA path on the emulator
#
# Three builds under $(BUILD)/simt: plain, asan, race. Host code does not know of the emulator: the plain and the race build link
# the objects of the CUDA program itself, with the fake CUDA libraries in place of the real ones.

SIMT          := $(BUILD)/simt
SIMT_CUDA_INC ?= $(or $(CUDA_HOME),/usr/local/cuda)/include
SIMT_BUILDS   := plain asan race

# -Wno-maybe-uninitialized: g++ 12 warns of it falsely behind a precompiled header. -fno-strict-aliasing: kernels read uint4 as bf16
# pairs, which nvcc allows. -fno-omit-frame-pointer: reports name frames.
SIMT_FLAGS := -std=c++20 -g1 -Wall -Wextra -Werror=switch -Wno-psabi -Wno-unknown-pragmas -Wno-maybe-uninitialized \
              -I. -isystem $(SIMT_CUDA_INC) -MMD -MP \
              -fno-strict-aliasing -fno-omit-frame-pointer $(DEFS) $(CUDA_DEFS) -DSIMT_EMU -DSIMT_SOURCE_ROOT='"$(CURDIR)"'
SIMT_SANITIZE := -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined
SIMT_KERNEL.plain := -O2
SIMT_KERNEL.asan  := -O1 $(SIMT_SANITIZE) -ftrivial-auto-var-init=pattern
SIMT_KERNEL.race  := -O1 -fsanitize=thread --param tsan-instrument-func-entry-exit=0
# Host code, and the emulator itself: of two halves, plain and asan.
SIMT_HOST.plain   := -O2 -fopenmp
SIMT_HOST.asan    := -O1 -fopenmp -fno-math-errno -fno-trapping-math $(SIMT_SANITIZE)
SIMT_OBJ.plain    := $(OBJ)
SIMT_OBJ.asan     := $(SIMT)/asan/h
SIMT_HALF.plain   := plain
SIMT_HALF.asan    := asan
SIMT_HALF.race    := plain

SIMT_RUNTIME := stack scheduler barrier warp shared copy tensor_core hopper coverage fake_cudart fake_loading fake_device fake_cublaslt \
                $(if $(HAVE_NCCL),fake_nccl fake_nccl_windows)
# Models of cuBLASLt and NCCL are there.
SIMT_OPS     := $(filter-out kernels/gemm/lt_library.cpp,$(sort $(wildcard kernels/*.cpp kernels/*/*.cpp)))
SIMT_REST    := $(filter-out comm/mpi_library.cpp comm/nccl_library.cpp,$(sort $(foreach room,comm zero llama,$(wildcard $(room)/*.cpp $(room)/*/*.cpp))))
SIMT_CU      := $(CU_SOURCES)
SIMT_TESTS   := $(KERNEL_TESTS)
SIMT_GTEST   := -lgtest_main -lgtest
SIMT_LIBS    := $(LIBS) -ldl -lrt -pthread

# simt_half(plain or asan)
define simt_half
$(SIMT)/$(1)/e/%.o: test/simt/%.cpp
	@mkdir -p $$(@D)
	$$(say)
	$$(Q)$$(CXX) $$(SIMT_FLAGS) $$(SIMT_HOST.$(1)) -c -o $$@ $$<
$(call precompiled,$(SIMT)/$(1)/t/std.h,dev/build/std.h test/kernels/kernel_test.h,$$(SIMT_FLAGS) $$(SIMT_HOST.$(1)) -O1)
$(SIMT)/$(1)/t/%.o: test/%.cpp $(if $(STD),$(SIMT)/$(1)/t/std.h.gch)
	@mkdir -p $$(@D)
	$$(say)
	$$(Q)$$(CXX) $$(SIMT_FLAGS) $$(SIMT_HOST.$(1)) -O1 $(if $(STD),-include $(SIMT)/$(1)/t/std.h) -c -o $$@ $$<
$(SIMT)/$(1)/libemu.a: $(SIMT_RUNTIME:%=$(SIMT)/$(1)/e/%.o) $(SIMT_OBJ.$(1))/kernels/runtime/call_stack.o
	@mkdir -p $$(@D); rm -f $$@; ar rcs $$@ $$^
$(SIMT)/$(1)/libops.a: $(SIMT_OPS:%.cpp=$(SIMT_OBJ.$(1))/%.o)
	@mkdir -p $$(@D); rm -f $$@; ar rcs $$@ $$^
$(SIMT)/$(1)/librest.a: $(SIMT_REST:%.cpp=$(SIMT_OBJ.$(1))/%.o)
	@mkdir -p $$(@D); rm -f $$@; ar rcs $$@ $$^
endef
$(foreach h,plain asan,$(eval $(call simt_half,$(h))))
$(SIMT_OBJ.asan)/%.o: %.cpp
	@mkdir -p $(@D)
	$(say)
	$(Q)$(CXX) $(SIMT_FLAGS) -DRZ_COMMIT='"$(COMMIT)"' $(SIMT_HOST.asan) -c -o $@ $<
$(SIMT_OBJ.asan)/train_llama.o: train_llama.cu
	@mkdir -p $(@D)
	$(say)
	$(Q)$(CXX) -x c++ $(SIMT_FLAGS) $(SIMT_HOST.asan) -c -o $@ $<

# simt_build(build, its half, the half's objects)
define simt_build
$(call precompiled,$(SIMT)/$(1)/k/std.h,dev/build/std.h,$$(SIMT_FLAGS) $$(SIMT_KERNEL.$(1)))
$(SIMT)/$(1)/k/%.o: %.cu | $(if $(STD),$(SIMT)/$(1)/k/std.h.gch)
	@mkdir -p $$(@D)
	$$(say)
	$$(Q)$$(CXX) -x c++ $$(SIMT_FLAGS) $$(SIMT_KERNEL.$(1)) $(if $(STD),-include $(SIMT)/$(1)/k/std.h) -c -o $$@ $$<
$(SIMT)/$(1)/libkernels.a: $(SIMT_CU:%.cu=$(SIMT)/$(1)/k/%.o)
	@mkdir -p $$(@D); rm -f $$@; ar rcs $$@ $$^
SIMT_EMU.$(1) := $(if $(filter race,$(1)),$(SIMT)/plain/e/race.o) $(SIMT)/$(2)/libemu.a
SIMT_ALL.$(1) := $(SIMT)/$(2)/libops.a $(SIMT)/$(1)/libkernels.a $$(SIMT_EMU.$(1))
SIMT_LINK.$(1) = $$(CXX) $$(SIMT_HOST.$(2)) -o $$@ $$(filter %.o,$$^) -Wl,--start-group $$(filter %.a,$$^) -Wl,--end-group

$(SIMT)/$(1)/kernel_tests: $(SIMT_TESTS:test/%.cpp=$(SIMT)/$(2)/t/%.o) $$(SIMT_ALL.$(1))
	$$(say)
	$$(Q)$$(SIMT_LINK.$(1)) $$(SIMT_GTEST) $$(SIMT_LIBS)
$(SIMT)/$(1)/self_tests: $(SIMT)/$(1)/k/test/simt/selftest.o $(patsubst %,$(SIMT)/$(2)/e/%.o,test_selftest test_streams) \
                         $(3)/kernels/runtime/check.o $(3)/kernels/runtime/load.o $$(SIMT_EMU.$(1))
	$$(say)
	$$(Q)$$(SIMT_LINK.$(1)) $$(SIMT_GTEST) -ldl -lrt -pthread
$(SIMT)/$(1)/planted: $(patsubst %,$(SIMT)/$(1)/k/test/simt/%.o,planted selftest) $(SIMT)/$(2)/e/planted_main.o \
                      $(3)/kernels/runtime/check.o $(3)/kernels/runtime/load.o $$(SIMT_EMU.$(1))
	$$(say)
	$$(Q)$$(SIMT_LINK.$(1)) -ldl -lrt -pthread
$(SIMT)/$(1)/train_llama_simt: $(3)/train_llama.o $(SIMT)/$(2)/librest.a $$(SIMT_ALL.$(1))
	$$(say)
	$$(Q)$$(SIMT_LINK.$(1)) $$(SIMT_LIBS)
endef
$(foreach b,$(SIMT_BUILDS),$(eval $(call simt_build,$(b),$(SIMT_HALF.$(b)),$(SIMT_OBJ.$(SIMT_HALF.$(b))))))

$(SIMT)/fidelity: $(SIMT)/plain/k/test/simt/fidelity.o $(OBJ)/kernels/runtime/check.o $(OBJ)/kernels/runtime/load.o $(SIMT_EMU.plain)
	$(say)
	$(Q)$(SIMT_LINK.plain) -ldl -lrt -pthread
# On a machine with a GPU: $(SIMT)/fidelity_gpu write test/simt/golden
$(SIMT)/fidelity_gpu: test/simt/fidelity.cu kernels/runtime/check.cpp kernels/runtime/load.cpp kernels/cuda/gpu.cuh kernels/cuda/ptx.cuh
	@mkdir -p $(@D)
	$(NVCC) -std=c++20 -O3 -gencode arch=compute_90a,code=[sm_90a,compute_90a] \
	  -gencode arch=compute_80,code=[sm_80,compute_80] -I. -o $@ $(filter %.cu %.cpp,$^)

# The communicator of comm/ on the model of NCCL.
$(SIMT)/plain/nccl_tests: $(SIMT)/plain/e/test_nccl.o $(SIMT)/plain/e/test_nccl_windows.o $(SIMT)/plain/librest.a $(SIMT_ALL.plain)
	$(say)
	$(Q)$(SIMT_LINK.plain) $(SIMT_GTEST) $(SIMT_LIBS)

# Offloading in the race build: copies come as late as events allow.
$(SIMT)/race/late_copies: $(SIMT)/plain/e/test_late_copies.o $(SIMT)/plain/librest.a $(SIMT_ALL.race)
	$(say)
	$(Q)$(SIMT_LINK.race) $(SIMT_GTEST) $(SIMT_LIBS)

# The kernel tests under ASan and UBSan, 116 objects of their own, are not part of make test: make test-asan.
SIMT_TARGETS      := $(foreach b,plain race,$(SIMT)/$(b)/self_tests $(SIMT)/$(b)/planted) $(SIMT)/fidelity \
                     $(SIMT)/plain/kernel_tests train_llama_simt $(if $(HAVE_NCCL),$(SIMT)/plain/nccl_tests)
SIMT_LONG_TARGETS := $(SIMT_TARGETS) $(addprefix $(SIMT)/,race/kernel_tests race/late_copies asan/self_tests asan/planted)
SIMT_FULL_TARGETS := $(SIMT_LONG_TARGETS) $(SIMT)/asan/kernel_tests

.PHONY: simt simt-lint simt-selftest simt-kernels simt-race test-asan train_llama_simt
train_llama_simt: $(SIMT)/plain/train_llama_simt
	@cmp -s $< $@ || (cp $< $@.tmp && mv $@.tmp $@ && echo "built ./train_llama_simt")
simt: $(SIMT_FULL_TARGETS)
	SIMT_BUILDS="$(SIMT_BUILDS)" test/simt/run.sh $(SIMT)
simt-lint:
	test/simt/lint.sh
simt-selftest: $(if $(HAVE_NCCL),$(SIMT)/plain/nccl_tests) $(foreach b,$(SIMT_BUILDS),$(SIMT)/$(b)/self_tests $(SIMT)/$(b)/planted) $(SIMT)/fidelity
	SIMT_BUILDS="$(SIMT_BUILDS)" test/simt/run.sh $(SIMT) selftest
simt-kernels: $(SIMT)/plain/kernel_tests
	test/simt/run.sh $(SIMT) kernels
simt-race: $(SIMT)/race/kernel_tests $(SIMT)/race/late_copies
	test/simt/run.sh $(SIMT) race
test-asan: $(SIMT)/asan/kernel_tests
	test/simt/run.sh $(SIMT) asan

-include $(shell find $(SIMT) -name '*.d' 2>/dev/null)
