#include "llama/train/batches.h"

#include <algorithm>
#include <utility>

#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/data/synthetic_data.h"
#include "llama/base/text.h"

namespace rz {

// Ids of one set mean nothing in another if they come from different tokenizers.
static void check_same_tokens(const Dataset& a, const Dataset& b) {
    require_request(
        a.vocab == b.vocab && read_file(a.tokenizer) == read_file(b.tokenizer),
        "--data: %s and %s were made with different tokenizers\n  prepare one of them again with --tokenizer %s",
        a.folder.c_str(), b.folder.c_str(), a.tokenizer.c_str());
}

static std::string last_part(const std::string& folder) {
    const size_t end = folder.find_last_not_of('/') + 1, slash = folder.rfind('/', end == 0 ? 0 : end - 1);
    return folder.substr(slash == std::string::npos ? 0 : slash + 1,
                         end - (slash == std::string::npos ? 0 : slash + 1));
}

// Finds the dataset that --data names: a folder, or a name that stands for one.
static Dataset find_dataset(const TrainOptions& o, const std::string& folder) {
    if (path_exists(folder + "/dataset.json")) return load_dataset(folder);
    const std::string name = last_part(folder), stem = name.substr(0, name.rfind('.'));
    if (is_file(folder)) {
        require_request(!name.ends_with(".bin"),
                        "--data %s is a file, not a folder made by prepare.py\n  nearest: --train-data %s",
                        folder.c_str(), folder.c_str());
        refuse(
            "--data %s is a file, and training reads token shards\n"
            "  python3 data_prep/prepare.py text %s --out data/%s   makes them, for --data data/%s",
            folder.c_str(), folder.c_str(), stem.c_str(), stem.c_str());
    }
    if (is_folder(folder) && !names_in(folder).empty())
        refuse(
            "--data %s has no dataset.json, so it holds no token shards of prepare.py\n"
            "  python3 data_prep/prepare.py text %s --out data/%s   makes them of the texts there",
            folder.c_str(), folder.c_str(), name.c_str());
    static const std::vector<std::string> kMade = {"synthetic", "dummy"};
    if (const std::string near = similar_name(folder, kMade); !near.empty())
        refuse("--data %s: not found\n  did you mean --data %s?", folder.c_str(), near.c_str());
    if (o.data_command.find(folder) != std::string::npos)
        fail("%s/dataset.json: not found; make the dataset with: %s", folder.c_str(), o.data_command.c_str());
    return load_dataset(folder);  // says how a dataset is made
}

static void find_sets(const TrainOptions& o, DataPaths& paths) {
    const MixRequest mix = parse_mix(o.data);
    paths.sets.clear();
    paths.shares = mix.shares;
    std::optional<Dataset> first;
    for (const std::string& folder : mix.folders) {
        const Dataset d = find_dataset(o, folder);
        if (!first) first = d;
        check_same_tokens(*first, d);
        std::string name = last_part(folder);
        for (const DataPaths::Set& s : paths.sets)
            if (s.name == name) name = folder;
        require_request(d.packed == 0 || d.packed == o.seq_len,
                        "--seq-len %ld: the rows of %s are packed for %ld, so that no sample cuts a conversation\n"
                        "  nearest: --seq-len %ld",
                        o.seq_len, folder.c_str(), d.packed, d.packed);
        require_request(!d.growing || (mix.folders.size() == 1 && o.data_order == DataOrder::kSequential),
                        "--data: %s is still being written, and can be trained on alone and in its order only\n"
                        "  nearest: --data %s --data-order sequential, or wait for it",
                        folder.c_str(), folder.c_str());
        paths.sets.push_back(
            {name, d.train, d.val, d.val_bytes_per_token, d.growing ? folder : "", d.train_sums, d.val_sums});
    }
    paths.tokenizer = first->tokenizer;
    paths.vocab = first->vocab;
    paths.doc_token = paths.bos = first->doc_token;
    paths.eos = first->eos;
    paths.changes = parse_mix_changes(o.data_weights_at, paths.sets.size());
    MixShares::parse(paths.shares, "--data");
    for (size_t k = 0; k < paths.sets.size(); ++k) {
        const auto used = [&](const std::vector<std::string>& shares) {
            return shares[k].find_first_not_of("0.") != std::string::npos;
        };
        require_request(used(paths.shares) || std::any_of(paths.changes.begin(), paths.changes.end(),
                                                          [&](const MixChange& c) { return used(c.shares); }),
                        "--data: the share of %s is 0 in the whole run\n  leave it out", mix.folders[k].c_str());
    }
}

DataPaths find_data(const TrainOptions& o) {
    DataPaths paths;
    if (!o.data.empty()) {
        require_request(o.train_data.empty() && o.val_data.empty(),
                        "--data names a folder with both: leave --train-data and --val-data out");
        if (is_made_data(o.data)) {
            const MadeData made = make_data(o.data);
            paths.sets[0] = {.name = o.data, .train = {made.train}, .val = {made.val}};
            paths.vocab = made.vocab, paths.about = made.about;
        } else {
            find_sets(o, paths);
        }
    }
    if (!o.train_data.empty()) paths.sets[0].train = expand_paths(o.train_data);
    if (!o.val_data.empty()) paths.sets[0].val = expand_paths(o.val_data);
    if (o.tokenizer.empty()) return paths;
    paths.tokenizer = o.tokenizer;
    if (!o.data.empty() && !is_made_data(o.data)) return paths;
    const Tokenizer tokenizer = Tokenizer::load(o.tokenizer);
    paths.bos = tokenizer.bos_id(), paths.eos = tokenizer.eos_id();
    return paths;
}

ModelConfig planned_config(const TrainOptions& o, std::string& note) {
    int64_t vocab = 0;
    try {
        vocab = find_data(o).vocab;
    } catch (const RequestError&) {
        throw;
    } catch (const Error&) {
        note =
            format("%s is not here: the vocabulary is the preset's", o.data.empty() ? "--train-data" : o.data.c_str());
        if (o.data_command.find(o.data) != std::string::npos && !o.data.empty())
            note += "; the data are made by: " + o.data_command;
    }
    return model_config(o, vocab);
}

DocumentMask document_mask(const TrainOptions& o, const DataPaths& paths, const ModelConfig& config) {
    if (o.doc_boundary == DocBoundary::none) return {};
    const int64_t vocab = config.vocab;
    const bool named = o.doc_token >= 0;
    require_request(named || paths.doc_token >= 0,
                    "--doc-mask %s: these shards do not say which token stands between documents\n"
                    "  give --doc-token ID, or a --data folder, which names it",
                    name_of(o.doc_boundary));
    require_request(named || o.doc_boundary == DocBoundary::bos,
                    "--doc-mask eos: in %s each document begins with token %ld\n  nearest: --doc-mask bos",
                    o.data.c_str(), paths.doc_token);
    const int64_t token = named ? o.doc_token : paths.doc_token;
    require_request(token < vocab, "--doc-token %ld is not in the vocabulary of %ld tokens\n  nearest: --doc-token %ld",
                    token, vocab, vocab - 1);
    return {o.doc_boundary, int32_t(token), config.window};
}

static void check_sum(const TokenShard& shard, int64_t want) {
    require(want < 0 || shard.sum() == want,
            "%s: the sum of its tokens is %u, dataset.json says %u: it is damaged; prepare it again",
            shard.path().c_str(), unsigned(shard.sum()), unsigned(want));
}

// The shard after the first `known` of a folder that is being written.
static NextShard look_for_shard(const std::string& folder, int64_t vocab, size_t known) {
    const Dataset d = load_dataset(folder);
    require(d.train.size() >= known, "%s: had %zu training shards and has %zu now: it was prepared again meanwhile",
            folder.c_str(), known, d.train.size());
    if (d.train.size() == known) return {.shard = {}, .more = d.growing};
    NextShard next{.shard = TokenShard(d.train[known])};
    check_sum(*next.shard, d.train_sums[known]);
    next.shard->check_tokens(vocab);
    return next;
}

DataSources open_data(const TrainOptions& o, DataPaths paths, const ModelConfig& config) {
    const int64_t vocab = config.vocab;
    require_request(!paths.sets[0].train.empty(),
                    "no training data: --data FOLDER or --train-data FILES is needed\n"
                    "  python3 data_prep/prepare.py stdlib  makes a folder from this machine's Python source");
    DataSources s{.paths = std::move(paths)};
    s.documents = document_mask(o, s.paths, config);
    const ShardOptions shards{.vocab = vocab, .raw16 = o.raw16};
    const MixShares shares = MixShares::parse(s.paths.shares, "--data");
    std::vector<DataSet> sets;
    double val_share = 0;
    for (size_t k = 0; k < s.paths.sets.size(); ++k) {
        const DataPaths::Set& set = s.paths.sets[k];
        const uint64_t seed = o.seed + k * 0x9e3779b97f4a7c15ull;  // of the first as if it were alone
        ShardSource next;
        if (!set.growing.empty())
            next = [folder = set.growing, vocab](size_t known) { return look_for_shard(folder, vocab, known); };
        std::vector<TokenShard> open = open_shards(set.train, shards);
        for (size_t i = 0; next && i < open.size(); ++i) check_sum(open[i], set.train_sums[i]);
        sets.push_back({set.name, DataLoader(std::move(open), o.seq_len, seed, vocab, o.data_order, std::move(next))});
        if (set.val.empty()) continue;
        const double share = double(shares.parts[k]) / double(shares.period);
        val_share += share;
        s.val.push_back({set.name, share, set.val_bytes_per_token,
                         DataLoader(open_shards(set.val, shards), o.seq_len, seed, vocab, DataOrder::kSequential)});
    }
    for (DataSources::Validation& v : s.val) v.share = val_share > 0 ? v.share / val_share : 1.0 / double(s.val.size());
    s.train = std::make_unique<DataMix>(std::move(sets), MixPlan({{0, shares}}));
    if (!s.paths.tokenizer.empty() && (o.sample_every > 0 || o.eval_every > 0))
        s.tokenizer = Tokenizer::load(s.paths.tokenizer);
    require_request(!s.val.empty() || (o.sample_every == 0 && (!o.given.count("val-every") || o.val_every == 0)),
                    "--%s: there are no validation data\n  give --val-data, or a --data folder that has some",
                    o.sample_every > 0 ? "sample-every" : "val-every");
    require_request(o.sample_every == 0 || s.tokenizer,
                    "--sample-every needs a tokenizer: give --tokenizer or a --data folder with one");
    require_request(o.eval_every == 0 || s.tokenizer,
                    "--eval-every needs a tokenizer: give --tokenizer or a --data folder with one");
    return s;
}

// The report of a step is waited for in the step after it, so with two steps' batches the host never waits inside one.
Batches::Batches(const DataSources& sources, AxisRank dp, AxisRank cp, bool counts, int64_t batch,
                 int64_t micro_batches, Device device, Stream& compute, bool same_plan, int64_t held, int read_ahead)
    : sources_(sources),
      dp_(dp),
      counts_(counts),
      batch_(batch),
      micro_batches_(micro_batches),
      feeder_(device, compute, batch, sources.train->seq_len(), sources.train->vocab(), ahead(micro_batches), same_plan,
              held, sources.documents, cp, read_ahead) {}

DeviceBatch Batches::rehearsal(int64_t step, int64_t micro_batch) {
    return feeder_.next(*sources_.train, position(step, micro_batch), INT64_MAX, /*in_turn=*/false);
}

DeviceBatch Batches::training(int64_t step, int64_t micro_batch) {
    const int64_t each = order_.empty() ? micro_batches_ : int64_t(order_.size());
    const auto nth = [=, this](int64_t i) {
        return position(step + i / each, order_.empty() ? i % each : order_[size_t(i % each)]);
    };
    // A shard that is still to be written is waited for when it is needed, not before.
    const bool grows = !sources_.paths.sets[0].growing.empty();
    feeder_.train_on(*sources_.train, grows ? std::function<int64_t(int64_t)>() : nth);
    const DeviceBatch b = feeder_.next(*sources_.train, position(step, micro_batch));
    if (!counts_) return b;
    hash_ += feeder_.data_hash();
    attended_.samples += feeder_.attention_share() * double(batch_);
    attended_.tiles += double(feeder_.tiles().causal);
    attended_.tiles_skipped += double(feeder_.tiles().skipped);
    return b;
}

DeviceBatch Batches::validation(size_t set, int64_t first, int64_t end) {
    return feeder_.next(sources_.val[set].data, first + dp_.rank * batch_, end);
}

int64_t Batches::targets_of(int64_t step) const {
    return sources_.train->targets(samples_before(step), samples_per_step());
}

size_t DataSources::train_shards() const {
    size_t n = 0;
    for (const DataPaths::Set& set : paths.sets) n += set.train.size();
    return n;
}

std::vector<std::string> DataSources::files() const {
    std::vector<std::string> all;
    const auto add = [&](const DataLoader& data) {
        for (const std::string& path : data.files()) all.push_back(path);
    };
    for (const DataSet& s : train->sets()) add(s.data);
    for (const Validation& v : val) add(v.data);
    return all;
}

int64_t DataSources::val_tokens() const {
    int64_t n = 0;
    for (const Validation& v : val) n += v.data.tokens();
    return n;
}

std::string Batches::epochs_json(int64_t step) const {
    const std::vector<DataSet>& sets = sources_.train->sets();
    if (sets.size() == 1) return "";
    const std::vector<double> epochs = sources_.train->epochs(samples_before(step + 1));
    OrderedJson json;
    for (size_t k = 0; k < sets.size(); ++k) json[replace_invalid_utf8(sets[k].name)] = epochs[k];
    return json.dump();
}

std::string Batches::samples_json(int64_t step) const {
    const int64_t first = samples_before(step), count = samples_per_step();
    const DataMix& train = *sources_.train;
    OrderedJson ids = OrderedJson::object();
    for (int64_t position = first; position < first + count; ++position) {
        const auto [set, sample] = train.sample_at(position);
        ids[replace_invalid_utf8(train.sets()[size_t(set)].name)].push_back(sample);
    }
    return OrderedJson{{"first", first}, {"count", count}, {"samples", std::move(ids)}}.dump();
}

MixPlan Batches::mix_plan(const DataFingerprint* resumed) const {
    const DataPaths& p = sources_.paths;
    const auto parse = [](const std::vector<std::string>& shares) {
        return MixShares::parse(shares, "shares of --data");
    };
    std::vector<MixStage> stages;
    if (resumed && resumed->sets.size() == p.sets.size() && resumed->seq_len == sources_.train->seq_len())
        for (const DataFingerprint::Stage& s : resumed->stages)
            if (s.first < from_.samples) stages.push_back({s.first, parse(s.shares)});
    std::vector<std::string> now = p.shares;
    for (const MixChange& c : p.changes)
        if (c.step <= from_.step + 1) now = c.shares;
    if (stages.empty())
        stages.push_back({0, parse(now)});
    else if (!(stages.back().shares == parse(now)))
        stages.push_back({from_.samples, parse(now)});
    for (const MixChange& c : p.changes)
        if (c.step > from_.step + 1) stages.push_back({samples_before(c.step), parse(c.shares)});
    return MixPlan(std::move(stages));
}

uint64_t Batches::take_hash() { return std::exchange(hash_, 0); }
Batches::Attended Batches::take_attended() { return std::exchange(attended_, {}); }

}  // namespace rz
