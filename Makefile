# ringzero: LLaMA training in raw CUDA C++.
#
#   make              build ./train_llama with everything this machine can build (CUDA where nvcc is, MPI where it is)
#   make quickstart   install what is missing, build, prepare text, train, generate, plot: one command on a bare machine
#   make reproduce    published results beside ours: tiny-shakespeare, grokking, recall; minutes   (TEXT=input.txt, without a network)
#   make reproduce-long  the same of a model of 10.7M parameters on tiny-shakespeare; an hour
#   make test         every test that needs no GPU   (SECTIONS="unit learn python mpi tsan program simt ptx" picks some)
#   make test-full    after make test: what takes minutes more and needs no GPU (lm-eval and wandb come from PyPI, or are skipped)
#   make test-faults  the program under every fault it must survive (make test has the quick ones)
#   make test-ptx     the compiled kernels' PTX, run on the CPU (make test has the quick part)
#   make test-faults-all  the program under a failure of each of its calls, one at a time (an hour)
#   make test-gpu     the kernel tests on the GPU
#   make install      into PREFIX=/usr/local, with recipes, man page, shell completion; make uninstall takes it away
#   make dist         an archive that runs without compilers, into build/dist (dev/build/dist.sh)
#   make learn        25 lessons: solutions pass, exercises fail (dev/learn/README.md)
#   make bench        the microbenchmarks and tools in dev/
#   make check        before a commit, in under a minute beside the compiling: lint, tests that reach what changed (dev/build/check.sh)
#   make lint         static checks that take seconds (dev/build/lint.sh)
#   make deps         install what is missing    make reconfigure  look again what is here    make clean
#   make compile-commands  build/compile_commands.json, for editors
#   make onednn       a newer oneDNN than Debian 12's into build/, without root (dev/build/onednn.sh)
#
# Options:  CUDA=0  leave the CUDA half out      MPI=0  leave MPI out      BUILD=dir  CXX=g++  OPT=-O3  V=1 (commands)
#           DEBUG_INFO=-g1  line tables for a debugger; -g0 compiles a little faster      J=jobs
#           SM="80 90a"  GPU architectures; default: this machine's GPUs; without one, all of 80 89 90a 100 120 that nvcc knows for
#                        make and make install, 80 and 90a for other goals (tests need no more); SM=all, make dist: 75 too

# Tests and benchmarks keep what they train where --out says so, and only there.
export RINGZERO_RUNS :=

CXX   ?= g++
BUILD ?= build
OPT   ?= -O3
DEBUG_INFO ?= -g1
SM    ?= auto
CUDA  ?= auto
MPI   ?= auto

.DEFAULT_GOAL := all

# ---- what is here ----------------------------------------------------------------------------------------------------

CONFIG := $(BUILD)/config.mk
NOBUILD := clean help deps lint quickstart onednn
ifeq ($(filter $(NOBUILD),$(or $(MAKECMDGOALS),all)),)
$(CONFIG): dev/build/configure.sh dev/build/cuda_arches.sh
	@mkdir -p $(BUILD)
	@CXX='$(CXX)' BUILD=$(BUILD) dev/build/configure.sh > $@.tmp && mv $@.tmp $@
-include $(CONFIG)
endif

ifeq ($(CUDA),0)
HAVE_CUDA :=
endif
ifeq ($(MPI),0)
HAVE_MPI :=
endif
CUDA_ADVICE = CUDA Toolkit $(CUDA_TOO_OLD) is older than 12.0, the oldest that knows Hopper's tensor maps; install 12.0 or newer, \
or set NVCC=/path/to/nvcc and run: make reconfigure
ifneq ($(CUDA_TOO_OLD),)
$(if $(filter 1,$(CUDA)),$(error $(CUDA_ADVICE)),$(if $(MAKELEVEL:0=),,$(info building without CUDA: $(CUDA_ADVICE))))
endif
ifneq ($(filter 1,$(CUDA)),)
ifeq ($(HAVE_CUDA)$(wildcard $(CONFIG)),$(CONFIG))
$(error CUDA=1, but no usable nvcc with cuBLASLt was found; install the CUDA Toolkit or set NVCC=/path/to/nvcc and run: make reconfigure)
endif
endif

# ---- flags -----------------------------------------------------------------------------------------------------------

# -fno-math-errno and -fno-trapping-math let loops with sqrt and comparisons vectorise; neither changes a value.
# -Werror=switch: a switch over an enum has no default, so a value that is added later is found everywhere.
comma := ,
BASE_CXXFLAGS := -std=c++20 $(OPT) $(DEBUG_INFO) -Wall -Wextra -Werror=switch -Wno-psabi -Wno-restrict -fno-math-errno \
                 -fno-trapping-math -I. -MMD -MP
# Clang does not know all of these warnings and pragmas. GCC collects its garbage when a gigabyte is there, not at every 128 MB: a sixth
# less time for the largest sources, an eighth more memory.
ifneq ($(findstring clang,$(CXX)),)
BASE_CXXFLAGS += -Wno-unknown-warning-option -Wno-unknown-pragmas -Wno-pass-failed
else
BASE_CXXFLAGS += --param ggc-min-expand=1000 --param ggc-min-heapsize=1000000
endif
COMMIT := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
# The newest tag like v1.2, and how far behind it this is: 1.2, or 1.2-14-g0123abc
VERSION := $(patsubst v%,%,$(shell git describe --tags --match 'v[0-9]*' 2>/dev/null || echo v0.1))
DEFS := $(if $(HAVE_DNNL),-DRZ_HAVE_DNNL $(DNNL_CFLAGS)) $(if $(HAVE_MPI),-DRZ_HAVE_MPI $(MPI_CFLAGS)) $(if $(HAVE_CRYPTO),-DRZ_HAVE_CRYPTO)
LIBS := $(if $(HAVE_DNNL),$(DNNL_LIBS)) $(if $(HAVE_MPI),$(MPI_LIBS)) $(if $(HAVE_CRYPTO),-lcrypto) -pthread
CUDA_DEFS := -DRZ_CUDA $(if $(HAVE_NCCL),-DRZ_HAVE_NCCL $(NCCL_CFLAGS)) -I$(CUDA_HOME)/include
# Not -lcublasLt, not -lnccl: kernels/gemm/lt_library.cpp and comm/nccl_library.cpp open them.
CUDA_LIBS := -L$(CUDA_LIB) -Wl,-rpath,$(CUDA_LIB) -lcudart $(if $(HAVE_NCCL),$(NCCL_LIBS))
OPENMP := -fopenmp

# The PTX of 80 and 90a is kept beside the code, for test/ptx, and that of the last, which newer GPUs translate.
# build/arches/ has one file, named after what the kernels are compiled for: other architectures compile them anew, fewer by default don't.
WANTED_ARCHES := $(if $(filter all,$(SM)),$(CUDA_KNOWS),$(if $(filter-out auto,$(SM)),$(SM),$(or $(CUDA_HERE),$(if $(filter \
                 dist,$(MAKECMDGOALS)),$(CUDA_KNOWS)),$(if $(filter all install,$(or $(MAKECMDGOALS),all)),$(filter-out \
                 75,$(CUDA_KNOWS)),80 90a))))
SM_ADVICE = the kernels need compute capability 7.5 (Turing) or newer, for ldmatrix and mma.sync
$(if $(filter 5% 6% 70 72,$(SM)),$(error SM=$(SM): $(SM_ADVICE)))
$(if $(CUDA_TOO_SMALL),$(if $(MAKELEVEL:0=),,$(info this machine has a GPU of compute capability $(CUDA_TOO_SMALL): $(SM_ADVICE); the CPU trains)))
BUILT_ARCHES  := $(if $(filter auto,$(SM)),$(subst -, ,$(notdir $(wildcard $(BUILD)/arches/*))))
ARCHES  := $(if $(filter-out $(BUILT_ARCHES),$(WANTED_ARCHES)),$(WANTED_ARCHES),$(or $(BUILT_ARCHES),$(WANTED_ARCHES)))
ARCHES_STAMP := $(BUILD)/arches/$(subst $(empty) ,-,$(strip $(ARCHES)))
GENCODE := $(foreach s,$(ARCHES),-gencode arch=compute_$(s),code=$(if \
           $(filter 80 90a $(lastword $(ARCHES)),$(s)),[sm_$(s)$(comma)compute_$(s)],sm_$(s)))
# nvcc takes a compiler alone: CXX may be "ccache g++".
CCBIN := $(lastword $(filter-out -%,$(CXX)))
# Warnings are errors in `make test` only (WERROR=1): another compiler knows others. -O1 is for the host's half, which has no loops; the
# kernels are compiled with ptxas' and nvcc's default, 3.
NVCCFLAGS := -std=c++20 -O1 -lineinfo -ccbin $(CCBIN) $(GENCODE) -I. --expt-relaxed-constexpr -Xcompiler -Wall,-Werror=switch,-Wno-psabi \
             $(if $(WERROR),--Werror all-warnings) -DRZ_CUDA

# Each step of a build is one line, n/N first; V=1 shows the commands instead. N comes from a dry run, made at the first step.
STEP :=
STEPS = $(eval STEPS := $(shell $(MAKE) -n COUNTING=1 $(MAKEOVERRIDES) $(MAKECMDGOALS) 2>/dev/null | grep -c RZ_STEP))$(STEPS)
say = $(if $(COUNTING),@: RZ_STEP,$(if $(V),@:,@echo '[$(eval STEP += 1)$(words $(STEP))/$(STEPS)] $(@:$(BUILD)/%=%)'))
Q := $(if $(V),,@)

# ---- the library and the program -------------------------------------------------------------------------------------

# comm/mpi_library.cpp stands for MPI in the program of make dist alone.
CPP_SOURCES := $(filter-out comm/mpi_library.cpp,$(sort $(foreach room,kernels comm zero llama,$(wildcard $(room)/*.cpp $(room)/*/*.cpp))))
CU_SOURCES  := $(sort $(wildcard kernels/*.cu kernels/*/*.cu comm/*.cu))

FLAVOUR := $(if $(HAVE_CUDA),cuda,cpu)$(if $(HAVE_MPI),,-nompi)
OBJ := $(BUILD)/$(FLAVOUR)
OBJECTS := $(CPP_SOURCES:%.cpp=$(OBJ)/%.o) $(if $(HAVE_CUDA),$(CU_SOURCES:%.cu=$(OBJ)/%.cu.o))
FLAVOUR_DEFS := $(DEFS) $(if $(HAVE_CUDA),$(CUDA_DEFS))
FLAVOUR_LIBS := $(LIBS) $(if $(HAVE_CUDA),$(CUDA_LIBS))
LIB := $(OBJ)/libringzero.a
# Headers that most sources include are compiled once for each set of flags that follows; PCH=0: not.
PCH ?= 1
STD := $(if $(filter 0,$(PCH)),,$(OBJ)/std/hot.h $(OBJ)/std/cool.h)
LEVEL = $(if $(STD),-include $(word 1,$(STD)))
COOL = -O1 $(if $(STD),-include $(word 2,$(STD)))

.PHONY: all
all: train_llama

# ./train_llama is the program of the flavour built last.
.PHONY: train_llama
train_llama: $(OBJ)/train_llama
	@cmp -s $< $@ || (cp $< $@.tmp && mv $@.tmp $@ && echo "built ./train_llama ($(FLAVOUR))")

$(OBJ)/train_llama: $(OBJ)/train_llama.o $(LIB)
	$(say)
	$(Q)$(CXX) $(OPENMP) -o $@ $^ $(FLAVOUR_LIBS)

$(OBJ)/train_llama.o: train_llama.cu Makefile | $(STD:=.gch)
	@mkdir -p $(@D)
	$(say)
	$(Q)$(CXX) $(BASE_CXXFLAGS) $(LEVEL) $(OPENMP) $(FLAVOUR_DEFS) -x c++ -c -o $@ $<

$(LIB): $(OBJECTS)
	@rm -f $@
	@ar rcs $@ $^

# precompiled(FILE, headers, flags): FILE includes the headers, FILE.gch is what the compiler makes of it
define precompiled
$(1).gch: $(2) Makefile
	@mkdir -p $$(@D)
	$$(say)
	$$(Q)printf '#include "%s"\n' $(2) > $(1) && $$(CXX) $(3) -MT $$@ -MF $(1).d -x c++-header -o $$@ $(1)
-include $(1).d
endef
$(eval $(call precompiled,$(OBJ)/std/hot.h,dev/build/std.h,$$(BASE_CXXFLAGS) $$(OPENMP) $$(FLAVOUR_DEFS)))
$(eval $(call precompiled,$(OBJ)/std/cool.h,dev/build/std.h,$$(BASE_CXXFLAGS) -O1 $$(OPENMP) $$(FLAVOUR_DEFS)))

$(OBJ)/%.o: %.cpp Makefile | $(STD:=.gch)
	@mkdir -p $(@D)
	$(say)
	$(Q)$(CXX) $(BASE_CXXFLAGS) $(LEVEL) $(OPENMP) $(FLAVOUR_DEFS) -c -o $@ $<

$(ARCHES_STAMP):
	@rm -rf $(@D); mkdir -p $(@D); touch $@
$(OBJ)/%.cu.o: %.cu Makefile $(ARCHES_STAMP)
	@mkdir -p $(@D)
	$(say)
	$(Q)$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

# Its kernel calls NCCL's device API.
NCCL_DEVICE_FLAGS := $(if $(HAVE_NCCL),-DRZ_HAVE_NCCL $(NCCL_CFLAGS:-I%=-isystem %))
$(OBJ)/comm/%.cu.o: private NVCCFLAGS += $(NCCL_DEVICE_FLAGS)

# The oneDNN that was found last
$(OBJ)/kernels/gemm/gemm_dnnl.o: $(CONFIG)

# Compiling fast counts if no loop is hot: flags, files and reports, what enqueues ops and messages; below, the tests. Bits do
# not depend on it.
$(addprefix $(OBJ)/,$(foreach room,train report model parallel plan,llama/$(room)/%.o) llama/run_command.o comm/%.o zero/%.o dev/common/%.o \
    train_llama.o $(addprefix llama/,base/json.o base/safetensors.o tokenizer/tokenizer_json.o data/data_loader.o \
    $(addprefix checkpoint/,manifest.o checkpoint.o checkpoint_load.o checkpoint_store.o))): \
    private LEVEL = $(COOL)
$(OBJ)/llama/train/command_line.o $(OBJ)/llama/base/toml.o $(OBJ)/dev/bench/harness.o: private LEVEL = -O0
# As fast as by -O3, which unrolls what waits for memory.
$(OBJ)/kernels/adamw.o $(OBJ)/kernels/muon.o: private LEVEL = -O2

# The commit is known at run time from this one file, rebuilt when it changes.
$(BUILD)/commit.txt: FORCE
	@mkdir -p $(@D)
	@echo '$(COMMIT) $(VERSION)' | cmp -s - $@ || echo '$(COMMIT) $(VERSION)' > $@
$(OBJ)/llama/train/chat_prompt.o: data_prep/chat_template.py
$(OBJ)/llama/base/builtin.o: $(wildcard llama/configs/*.toml llama/configs/machines/*.toml)
$(OBJ)/llama/base/version.o: $(BUILD)/commit.txt
$(OBJ)/llama/base/version.o: private BASE_CXXFLAGS += -DRZ_COMMIT='"$(COMMIT)"' -DRZ_VERSION='"$(VERSION)"'
.PHONY: FORCE
FORCE:

# ---- tests -----------------------------------------------------------------------------------------------------------

GTEST := -lgtest_main -lgtest
# Shared by tools and their tests.
COMMON_SOURCES := $(sort $(wildcard dev/common/*.cpp))
COMMON_OBJECTS := $(COMMON_SOURCES:%.cpp=$(OBJ)/%.o)
UNIT_SOURCES   := $(filter-out test/simt/%,$(sort $(wildcard test/*/test_*.cpp)))
MPI_TESTS      := $(sort $(wildcard test/*/mpi_*.cpp))
KERNEL_TESTS   := $(sort $(wildcard test/*/kernel_*.cpp))
UNIT_OBJECTS   := $(UNIT_SOURCES:%.cpp=$(OBJ)/%.o)
MPI_OBJECTS    := $(MPI_TESTS:%.cpp=$(OBJ)/%.o)
KERNEL_OBJECTS := $(KERNEL_TESTS:%.cpp=$(OBJ)/%.o)
# GoogleTest is in their header: the program builds where it is not.
ifneq ($(STD),)
$(eval $(call precompiled,$(OBJ)/std/test.h,dev/build/std.h test/checks.h,$$(BASE_CXXFLAGS) -O1 $$(OPENMP) $$(FLAVOUR_DEFS)))
$(UNIT_OBJECTS) $(MPI_OBJECTS) $(KERNEL_OBJECTS): | $(OBJ)/std/test.h.gch
endif
$(OBJ)/test/%.o: private LEVEL = -O1 $(if $(STD),-include $(OBJ)/std/test.h)

$(OBJ)/unit_tests: $(UNIT_OBJECTS) $(COMMON_OBJECTS) $(LIB)
	$(say)
	$(Q)$(CXX) $(OPENMP) -o $@ $^ $(GTEST) $(FLAVOUR_LIBS)
$(OBJ)/mpi_tests: $(MPI_OBJECTS) $(LIB)
	$(say)
	$(Q)$(CXX) $(OPENMP) -o $@ $^ -lgtest $(FLAVOUR_LIBS)
$(OBJ)/kernel_tests: $(KERNEL_OBJECTS) $(LIB)
	$(say)
	$(Q)$(CXX) $(OPENMP) -o $@ $^ $(GTEST) $(FLAVOUR_LIBS)

ifneq ($(HAVE_CUDA),)
include test/simt/simt.mk
include test/ptx/ptx.mk
endif

# Streams, collectives, ZeRO and models on a pipeline's stages under ThreadSanitizer: ranks are threads. Without OpenMP
# and oneDNN, whose threads are not instrumented; GEMM is then our own loops.
TSAN := $(BUILD)/tsan
TSAN_TESTS := $(addprefix test/,comm/test_comm.cpp comm/test_mesh.cpp comm/test_symmetric.cpp comm/test_wire_check.cpp \
  llama/test_pipeline_executor.cpp llama/test_pipeline_layouts.cpp zero/test_zero.cpp)
# Objects that these tests reach; the linker says if more is needed.
TSAN_SOURCES := $(filter-out $(addprefix llama/,train/% report/% tokenizer/% data/% checkpoint/% plan/% \
  $(addsuffix .cpp,$(addprefix base/,background builtin machine output shell toml) $(addprefix model/,generate presets recipe))) \
  $(addprefix comm/,crash.cpp layout_text.cpp),$(CPP_SOURCES))
TSAN_FLAGS = $(BASE_CXXFLAGS) -O1 -fsanitize=thread -Wno-unknown-pragmas
$(eval $(call precompiled,$(TSAN)/std.h,dev/build/std.h,$$(TSAN_FLAGS)))
$(TSAN)/%.o: %.cpp | $(if $(STD),$(TSAN)/std.h.gch)
	@mkdir -p $(@D)
	$(say)
	$(Q)$(CXX) $(TSAN_FLAGS) $(if $(STD),-include $(TSAN)/std.h) -c -o $@ $<
$(TSAN)/libringzero.a: $(TSAN_SOURCES:%.cpp=$(TSAN)/%.o) $(addprefix $(TSAN)/llama/train/,train_state.o statistics.o traffic.o)
	@rm -f $@; ar rcs $@ $^
$(TSAN)/tests: $(TSAN_TESTS:%.cpp=$(TSAN)/%.o) $(TSAN)/libringzero.a
	$(say)
	$(Q)$(CXX) -fsanitize=thread -o $@ $^ $(GTEST) -lgomp -pthread

.PHONY: test test-unit test-gpu
test: deps-test
	@$(MAKE) --no-print-directory -j$(or $(J),$(shell nproc)) WERROR=1 test-build
	@dev/build/run_tests.sh $(BUILD) $(OBJ) $(SECTIONS)

FAULT_SHIM := $(BUILD)/libfile_faults.so
.PHONY: test-build deps-test
test-build: train_llama $(FAULT_SHIM) learn-build $(OBJ)/dev/report $(OBJ)/dev/harness $(OBJ)/unit_tests $(if $(HAVE_MPI),$(OBJ)/mpi_tests) $(TSAN)/tests $(if $(HAVE_CUDA),$(SIMT_TARGETS) $(PTX_TARGETS))
# Installed libraries are looked for again: config.mk was written before.
deps-test:
	@dev/build/install_deps.sh --check || { dev/build/install_deps.sh && rm -f $(CONFIG); }

test-unit: $(OBJ)/unit_tests
	$(OBJ)/unit_tests --gtest_brief=1

# Kills, hangs, full disks and bad numbers, against the program under mpirun: minutes. `make test` has the quick ones.
.PHONY: test-full full-build test-faults test-layouts test-lm-eval test-wandb test-plan
test-full: full-build
	@dev/build/run_tests.sh $(BUILD) $(OBJ) long
full-build:
	@$(MAKE) --no-print-directory -j$(or $(J),$(shell nproc)) WERROR=1 train_llama $(FAULT_SHIM) $(OBJ)/unit_tests $(OBJ)/dev/harness $(OBJ)/dev/model_logits $(OBJ)/dev/tokens $(if $(HAVE_CUDA),$(SIMT_LONG_TARGETS) $(PTX)/sm75/kernel_tests)
# Parts of test-full, one at a time.
# The plan beside the ledger, every pair of settings, on the CPU and on the emulated GPU: three minutes of one core.
test-plan: train_llama train_llama_simt
	test/program/test_plan.py ./train_llama ./train_llama_simt
test-faults: train_llama $(FAULT_SHIM)
	test/program/test_faults.py ./train_llama
# One run at thirteen layouts, and eight layouts' checkpoints resumed by each other.
test-layouts: train_llama
	test/program/test_layouts.py ./train_llama
# Asks lm-evaluation-harness itself, and transformers; skipped where PyPI has not got them.
test-lm-eval: train_llama $(OBJ)/dev/model_logits $(OBJ)/dev/tokens
	test/program/test_lm_eval.py ./train_llama $(OBJ)/dev/model_logits
# Draws models, layouts, tokenizers, tasks, schedules and exports for MINUTES from SEED, and compares them with PyTorch,
# transformers, tokenizers, lm-evaluation-harness and llama.cpp. ORACLE="--faults" and the like: dev/golden/oracle/oracle.py.
.PHONY: oracle
oracle: train_llama $(OBJ)/dev/model_logits $(OBJ)/dev/tokens
	dev/golden/oracle/run.sh --logits $(OBJ)/dev/model_logits --tokens $(OBJ)/dev/tokens --seed $(or $(SEED),1) \
	  --minutes $(or $(MINUTES),10) $(ORACLE)
# Asks wandb's own reader, and TensorBoard; skipped likewise.
test-wandb: train_llama
	test/program/test_wandb.py ./train_llama

# Every file operation fails once, and is where the program is killed once; every allocation and thread fails: an hour of one
# core. `make test` has some of it. JOURNAL=FILE continues where an earlier start was stopped; REPORT=FILE is a table.
$(FAULT_SHIM): test/faults/file_faults.cpp
	@mkdir -p $(@D)
	$(CXX) -std=c++20 -O1 -g1 -Wall -Wextra -shared -fPIC -o $@ $< -ldl
.PHONY: test-faults-all
test-faults-all: train_llama $(FAULT_SHIM)
	test/faults/in_the_way.py ./train_llama $(FAULT_SHIM)
	test/faults/all_faults.py ./train_llama $(FAULT_SHIM) --core-minutes 60 $(if $(JOURNAL),--journal $(JOURNAL)) $(if $(REPORT),--report $(REPORT))
# Power cuts: what a file system may leave at every moment. Folders damaged at random. Two minutes of one core each.
.PHONY: test-power-loss test-surroundings test-mutations test-mutations-asan
test-power-loss: train_llama $(FAULT_SHIM)
	test/faults/power_loss.py ./train_llama $(FAULT_SHIM) --states 60
# Poor surroundings crossed pairwise, in namespaces of their own (root).
test-surroundings: train_llama
	test/faults/surroundings.py ./train_llama $(if $(REPORT),--report $(REPORT))
# MUTATIONS=3000: as many as asked for, however long.
test-mutations: train_llama
	test/faults/mutations.py ./train_llama --seed $(or $(SEED),1) $(if $(MUTATIONS),--minutes 600 --cases $(MUTATIONS),--minutes 2)
# The same with AddressSanitizer and UBSan (make test-full has a few without); MUTATIONS=5000 as many as asked for. Then a
# few on the emulated GPU, whose kernels the sanitizers watch too (MUTATIONS_CUDA).
test-mutations-asan: $(BUILD)/simt/asan/train_llama_simt
	test/faults/mutations.py $< --minutes 600 --cases $(or $(MUTATIONS),300)
	test/faults/mutations.py $< --minutes 600 --cases $(or $(MUTATIONS_CUDA),24) --device cuda --timeout 300

# An earlier commit beside this tree, on the CPU: weights, losses and resumes must be equal, but for test/baseline_expected.txt. The base
# is built in a work tree below $(BUILD). ROWS=help,plan picks other parts of test/baseline.py; ROWS=ptx compares the kernels.
BASE ?= fd65b2a
BASE_TREE = $(BUILD)/base-$(BASE)
build_on_cpu = $(MAKE) --no-print-directory -C $(1) CUDA=0 BUILD=build CXX=$(CCBIN) $(2) || exit 1
.PHONY: test-baseline
test-baseline: train_llama
	@git cat-file -e '$(BASE)^{commit}' 2> /dev/null || { echo 'this clone lacks commit $(BASE)'; echo '0 passed, 0 failed, 1 skipped'; exit 0; }; \
	[ -e $(BASE_TREE) ] || git worktree add -qf --detach $(BASE_TREE) $(BASE) || exit 1; \
	$(call build_on_cpu,$(BASE_TREE),build/cpu/train_llama); \
	$(if $(findstring ops,$(ROWS)),for tree in $(BASE_TREE) .; do $(call build_on_cpu,$$tree,build/cpu/libringzero.a); done;) \
	test/baseline.py $(BASE_TREE) . $(if $(ROWS),--parts $(ROWS))

test-gpu: $(OBJ)/kernel_tests
	$(OBJ)/kernel_tests

# ---- benchmarks and tools --------------------------------------------------------------------------------------------

# A tool's program is $(OBJ)/dev/NAME, whatever its room.
DEV_SOURCES := $(sort $(filter-out $(COMMON_SOURCES),$(wildcard dev/*/*.cpp)))
DEV_TOOLS := $(foreach s,$(DEV_SOURCES),$(OBJ)/dev/$(basename $(notdir $s)))
define dev_tool
$(OBJ)/dev/$(basename $(notdir $(1))): $(1:%.cpp=$(OBJ)/%.o) $(COMMON_OBJECTS) $(LIB)
	$$(say)
	$$(Q)$$(CXX) $$(OPENMP) -o $$@ $$^ $$(FLAVOUR_LIBS)
endef
$(foreach s,$(DEV_SOURCES),$(eval $(call dev_tool,$s)))
.PHONY: bench tools
tools bench: $(DEV_TOOLS)
	@ln -sfn $(FLAVOUR)/dev $(BUILD)/dev
	@echo "built: $(DEV_TOOLS:$(OBJ)/%=$(BUILD)/%)"

include dev/learn/learn.mk

PREFIX ?= /usr/local
.PHONY: install uninstall
install: train_llama
	@dev/build/install.sh ./train_llama "$(DESTDIR)$(PREFIX)"
uninstall:
	@dev/build/install.sh --remove "$(DESTDIR)$(PREFIX)"

# A program to carry elsewhere: libstdc++, libcrypto and the CUDA runtime are in it, OpenMP and oneDNN lie in lib beside it; MPI,
# cuBLASLt and NCCL are opened where they are needed. Nothing in it is exported, so oneDNN keeps the system's libstdc++.
DIST_LIBS := $(patsubst -lcudart,-lcudart_static -lrt,$(patsubst -lcrypto,-l:libcrypto.a,$(filter-out $(MPI_LIBS) -Wl%,$(FLAVOUR_LIBS)))) -ldl
$(OBJ)/dist/train_llama: $(OBJ)/train_llama.o $(if $(HAVE_MPI),$(OBJ)/comm/mpi_library.o) $(LIB)
	@mkdir -p $(@D)
	$(say)
	$(Q)$(CXX) $(OPENMP) -o $@ $^ $(DIST_LIBS) -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/lib'
.PHONY: dist
dist: $(OBJ)/dist/train_llama
	@dev/build/dist.sh $< $(BUILD)/dist ringzero-$(VERSION)-$(if $(HAVE_CUDA),cuda,cpu)-$(shell uname -m)

# ---- first steps -----------------------------------------------------------------------------------------------------

.PHONY: deps onednn quickstart reproduce reproduce-long reproduce-run lint reconfigure clean help
lint:
	@dev/build/lint.sh
.PHONY: check
check: train_llama $(OBJ)/unit_tests
	@dev/build/check.sh $(OBJ)
# For clangd and its like: how the host's sources are compiled. Link it to where the editor looks.
.PHONY: compile-commands
compile-commands:
	@$(MAKE) -nB -o $(CONFIG) V=1 PCH=0 train_llama $(OBJ)/unit_tests | dev/build/compile_commands.py $(BUILD)
deps:
	dev/build/install_deps.sh
	@rm -f $(CONFIG)
onednn:
	dev/build/onednn.sh $(BUILD)
	@rm -f $(CONFIG)
quickstart:
	@dev/run/quickstart.sh
# On the CPU, without the CUDA half, whose kernels take minutes to compile.
reproduce:
	@$(MAKE) --no-print-directory -j$(or $(J),$(shell nproc)) CUDA=0 reproduce-run
reproduce-run: $(OBJ)/train_llama
	@dev/run/reproduce.py --program $< $(if $(TEXT),--text $(TEXT)) $(REPRODUCE)
reproduce-long:
	@$(MAKE) --no-print-directory reproduce REPRODUCE="--only long $(REPRODUCE)"
reconfigure:
	@rm -f $(CONFIG)
	@$(MAKE) --no-print-directory $(CONFIG)
clean:
	rm -rf $(BUILD) train_llama train_llama_simt
help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

.DELETE_ON_ERROR:
.SECONDARY:
-include $(OBJECTS:.o=.d) $(UNIT_OBJECTS:.o=.d) $(MPI_OBJECTS:.o=.d) $(KERNEL_OBJECTS:.o=.d) $(DEV_SOURCES:%.cpp=$(OBJ)/%.d) $(COMMON_OBJECTS:.o=.d) $(OBJ)/train_llama.d $(shell find $(TSAN) -name '*.d' 2>/dev/null)
