# The emulator: the kernels and the CUDA path of the program, run on a machine with no GPU. Included by the top Makefile,
# whose CXX, BUILD, DEFS, LIBS, COMMIT, HAVE_MPI it uses.
#
#   make simt              build and run all of the below
#   make simt-lint         the rules that kernel sources keep
#   make simt-selftest     the emulator's own tests, the planted bugs, the models against the goldens
#   make simt-kernels      test/kernel_*.cpp: plain with several seeds, ASan+UBSan, race; then the coverage report
#   make train_llama_simt  the program, its CUDA path on the emulator
#
# Three builds from the same sources under $(BUILD)/simt: plain, asan, race. The host half of the race build is the plain one.

SIMT          := $(BUILD)/simt
SIMT_CUDA_INC ?= $(or $(CUDA_HOME),/usr/local/cuda)/include
SIMT_BUILDS   := plain asan race
SIMT_NCCL     := $(if $(wildcard $(SIMT_CUDA_INC)/nccl.h),-DRZ_HAVE_NCCL,$(if $(HAVE_NCCL),-DRZ_HAVE_NCCL $(NCCL_CFLAGS)))

# -fno-strict-aliasing: kernels read uint4 as bf16 pairs, which nvcc allows. -fno-omit-frame-pointer: reports name frames.
SIMT_FLAGS := -std=c++20 -g1 -Wall -Wextra -Wno-psabi -Wno-unknown-pragmas -I. -isystem $(SIMT_CUDA_INC) -MMD -MP \
              -fno-strict-aliasing -fno-omit-frame-pointer -DRZ_CUDA $(SIMT_NCCL) -DSIMT_EMU \
              -DSIMT_SOURCE_ROOT='"$(CURDIR)"' -DRZ_COMMIT='"$(COMMIT)"' $(DEFS)
SIMT_SANITIZE := -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined
# Kernels by build; host code and the emulator by build of the host half.
SIMT_KERNEL.plain := -O2
SIMT_KERNEL.asan  := -O1 $(SIMT_SANITIZE) -ftrivial-auto-var-init=pattern
SIMT_KERNEL.race  := -O1 -fsanitize=thread --param tsan-instrument-func-entry-exit=0
SIMT_HOST.plain   := -O2 -fopenmp -fno-math-errno -fno-trapping-math
SIMT_HOST.asan    := -O1 -fopenmp -fno-math-errno -fno-trapping-math $(SIMT_SANITIZE)
SIMT_HALF.plain   := plain
SIMT_HALF.asan    := asan
SIMT_HALF.race    := plain

SIMT_RUNTIME := stack scheduler barrier warp shared copy tensor_core hopper coverage fake_cudart fake_cublaslt \
                $(if $(SIMT_NCCL),fake_nccl)
SIMT_CPP     := $(sort $(wildcard kernels/runtime/*.cpp kernels/*.cpp comm/*.cpp zero/*.cpp llama/*.cpp))
SIMT_CU      := $(sort $(wildcard kernels/*.cu))
SIMT_TESTS   := $(sort $(wildcard test/kernel_*.cpp))
SIMT_GTEST   := -lgtest_main -lgtest
SIMT_LIBS    := $(LIBS) -ldl -lrt -pthread

# The host half: simt_host(plain or asan)
define simt_host
$(SIMT)/$(1)/h/%.o: %.cpp
	@mkdir -p $$(@D)
	$$(CXX) $$(SIMT_FLAGS) $$(SIMT_HOST.$(1)) -c -o $$@ $$<
$(SIMT)/$(1)/h/train_llama.o: train_llama.cu
	@mkdir -p $$(@D)
	$$(CXX) -x c++ $$(SIMT_FLAGS) $$(SIMT_HOST.$(1)) -c -o $$@ $$<
$(SIMT)/$(1)/libhost.a: $(SIMT_CPP:%.cpp=$(SIMT)/$(1)/h/%.o)
	@rm -f $$@; ar rcs $$@ $$^
$(SIMT)/$(1)/libemu.a: $(SIMT_RUNTIME:%=$(SIMT)/$(1)/h/test/simt/%.o)
	@rm -f $$@; ar rcs $$@ $$^
endef
$(foreach b,plain asan,$(eval $(call simt_host,$(b))))

# The kernels and what is linked with them: simt_build(build, its host half). Kernels stand before the host library, which
# calls them; the archives are in one group because the rest refers back and forth.
define simt_build
$(SIMT)/$(1)/k/%.o: %.cu
	@mkdir -p $$(@D)
	$$(CXX) -x c++ $$(SIMT_FLAGS) $$(SIMT_KERNEL.$(1)) -c -o $$@ $$<
$(SIMT)/$(1)/libkernels.a: $(SIMT_CU:%.cu=$(SIMT)/$(1)/k/%.o)
	@rm -f $$@; ar rcs $$@ $$^
SIMT_EMU.$(1) := $(if $(filter race,$(1)),$(SIMT)/plain/h/test/simt/race.o) $(SIMT)/$(2)/libemu.a
SIMT_ALL.$(1) := $(SIMT)/$(2)/libhost.a $(SIMT)/$(1)/libkernels.a $$(SIMT_EMU.$(1))
SIMT_LINK.$(1) = $$(CXX) $$(SIMT_HOST.$(2)) -o $$@ $$(filter %.o,$$^) -Wl,--start-group $$(filter %.a,$$^) -Wl,--end-group

$(SIMT)/$(1)/kernel_tests: $(SIMT_TESTS:%.cpp=$(SIMT)/$(2)/h/%.o) $$(SIMT_ALL.$(1))
	$$(SIMT_LINK.$(1)) $$(SIMT_GTEST) $$(SIMT_LIBS)
$(SIMT)/$(1)/self_tests: $(SIMT)/$(1)/k/test/simt/selftest.o $(patsubst %,$(SIMT)/$(2)/h/test/simt/%.o,test_selftest test_streams) \
                         $(SIMT)/$(2)/h/kernels/runtime/check.o $$(SIMT_EMU.$(1))
	$$(SIMT_LINK.$(1)) $$(SIMT_GTEST) -ldl -lrt -pthread
$(SIMT)/$(1)/planted: $(patsubst %,$(SIMT)/$(1)/k/test/simt/%.o,planted selftest) $(SIMT)/$(2)/h/test/simt/planted_main.o \
                      $(SIMT)/$(2)/h/kernels/runtime/check.o $$(SIMT_EMU.$(1))
	$$(SIMT_LINK.$(1)) -ldl -lrt -pthread
$(SIMT)/$(1)/train_llama_simt: $(SIMT)/$(2)/h/train_llama.o $$(SIMT_ALL.$(1))
	$$(SIMT_LINK.$(1)) $$(SIMT_LIBS)
endef
$(foreach b,$(SIMT_BUILDS),$(eval $(call simt_build,$(b),$(SIMT_HALF.$(b)))))

$(SIMT)/fidelity: $(patsubst %,$(SIMT)/plain/k/test/simt/%.o,fidelity) $(SIMT)/plain/h/kernels/runtime/check.o $(SIMT_EMU.plain)
	$(SIMT_LINK.plain) -ldl -lrt -pthread
# On a machine with a GPU: $(SIMT)/fidelity_gpu write test/simt/golden
$(SIMT)/fidelity_gpu: test/simt/fidelity.cu kernels/runtime/check.cpp kernels/gpu.cuh kernels/ptx.cuh
	@mkdir -p $(@D)
	$(NVCC) -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_80,code=sm_80 -I. -o $@ $(filter %.cu %.cpp,$^)

SIMT_TARGETS := $(foreach b,$(SIMT_BUILDS),$(SIMT)/$(b)/self_tests $(SIMT)/$(b)/planted $(if $(SIMT_TESTS),$(SIMT)/$(b)/kernel_tests)) \
                $(SIMT)/fidelity train_llama_simt

.PHONY: simt simt-lint simt-selftest simt-kernels train_llama_simt
train_llama_simt: $(SIMT)/plain/train_llama_simt
	@cmp -s $< $@ || (cp $< $@.tmp && mv $@.tmp $@ && echo "built ./train_llama_simt")
simt: $(SIMT_TARGETS)
	test/simt/run.sh $(SIMT)
simt-lint:
	test/simt/lint.sh
simt-selftest: $(foreach b,$(SIMT_BUILDS),$(SIMT)/$(b)/self_tests $(SIMT)/$(b)/planted) $(SIMT)/fidelity
	test/simt/run.sh $(SIMT) selftest
simt-kernels: $(foreach b,$(SIMT_BUILDS),$(SIMT)/$(b)/kernel_tests)
	test/simt/run.sh $(SIMT) kernels

-include $(shell find $(SIMT) -name '*.d' 2>/dev/null)
