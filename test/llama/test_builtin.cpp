// The files of llama/configs in the program: all, as they are, found from anywhere.
#include "llama/base/builtin.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "llama/base/machine.h"
#include "test/checks.h"
#include "test/llama/toy_run.h"

namespace rz {
namespace {

namespace fs = std::filesystem;

TEST(Builtin, IsEveryFileOfTheFolder) {
    std::set<std::string> files, names;
    for (const auto& e : fs::recursive_directory_iterator("llama/configs"))
        if (e.path().extension() == ".toml")
            files.insert(e.path().lexically_relative("llama/configs").replace_extension().string());
    for (const Builtin& b : builtins()) {
        names.emplace(b.name);
        EXPECT_EQ(b.text, text_in("llama/configs/" + std::string(b.name) + ".toml")) << b.name;
    }
    EXPECT_EQ(names, files) << "llama/base/builtin.cpp lists them";
}

TEST(Builtin, MachinesAreKnownByName) {
    EXPECT_GT(machine_names().size(), 10u);
    for (const std::string& name : machine_names()) EXPECT_EQ(load_machine(name).name, name);
}

TEST(Builtin, RecipesAreFoundWhereThereIsNoSuchFile) {
    const fs::path tree = fs::current_path();
    const TempFolder away;
    const TrainOptions file = train_options("--config llama/configs/124m.toml");
    fs::current_path(away.path);
    for (const char* recipe : {"124m", "llama/configs/124m.toml"}) {
        const TrainOptions o = train_options(std::string("--config ") + recipe);
        EXPECT_EQ(o.given, file.given);
        EXPECT_EQ(o.preset, file.preset);
        EXPECT_EQ(o.steps, file.steps);
    }
    std::ofstream("124m") << "steps = 3\n";
    EXPECT_EQ(train_options("--config 124m").steps, 3);
    fs::current_path(tree);
}

}  // namespace
}  // namespace rz
