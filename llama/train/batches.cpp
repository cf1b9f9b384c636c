#include "llama/train/batches.h"

#include <algorithm>
#include <utility>

#include "llama/data/made_data.h"

namespace rz {

DataPaths find_data(const Options& o) {
    DataPaths paths;
    if (!o.data.empty()) {
        require(o.train_data.empty() && o.val_data.empty(),
                "--data names a folder with both: leave --train-data and --val-data out");
        if (is_made_data(o.data)) {
            const MadeData made = make_data(o.data);
            paths.train = {made.train}, paths.val = {made.val};
            paths.vocab = made.vocab, paths.about = made.about;
            return paths;
        }
        const Dataset d = load_dataset(o.data);
        paths = {d.train, d.val, d.tokenizer, d.vocab, d.val_bytes_per_token, d.doc_token, d.doc_token, d.eos};
    }
    if (!o.train_data.empty()) paths.train = expand_paths(o.train_data);
    if (!o.val_data.empty()) paths.val = expand_paths(o.val_data);
    if (o.tokenizer.empty()) return paths;
    paths.tokenizer = o.tokenizer;
    if (!o.data.empty()) return paths;
    const Tokenizer tokenizer = Tokenizer::load(o.tokenizer);
    paths.bos = tokenizer.bos_id(), paths.eos = tokenizer.eos_id();
    return paths;
}

DocumentMask document_mask(const Options& o, const DataPaths& paths, int64_t vocab) {
    if (o.doc_boundary == DocBoundary::none) return {};
    const bool named = o.doc_token >= 0;
    require(named || paths.doc_token >= 0,
            "--doc-boundary %s: these shards do not say which token stands between documents\n"
            "  give --doc-token ID, or a --data folder, which names it",
            name_of(o.doc_boundary));
    require(named || o.doc_boundary == DocBoundary::bos,
            "--doc-boundary eos: in %s each document begins with token %lld\n  nearest: --doc-boundary bos",
            o.data.c_str(), (long long)paths.doc_token);
    const int64_t token = named ? o.doc_token : paths.doc_token;
    require(token < vocab, "--doc-token %lld is not in the vocabulary of %lld tokens\n  nearest: --doc-token %lld",
            (long long)token, (long long)vocab, (long long)(vocab - 1));
    return {o.doc_boundary, int32_t(token)};
}

DataSources open_data(const Options& o, DataPaths paths, int64_t vocab) {
    require(!paths.train.empty(),
            "no training data: --data FOLDER or --train-data FILES is needed\n"
            "  python3 data_prep/prepare.py stdlib  makes a folder from this machine's Python source");
    DataSources s{.paths = std::move(paths)};
    s.documents = document_mask(o, s.paths, vocab);
    const ShardOptions shards{.vocab = vocab, .raw16 = o.raw16};
    s.train = std::make_unique<DataLoader>(open_shards(s.paths.train, shards), o.seq_len, o.seed, vocab);
    if (!s.paths.val.empty())
        s.val = std::make_unique<DataLoader>(open_shards(s.paths.val, shards), o.seq_len, o.seed, vocab,
                                             DataOrder::kSequential);
    if (!s.paths.tokenizer.empty() && (o.sample_every > 0 || o.eval_every > 0))
        s.tokenizer = Tokenizer::load(s.paths.tokenizer);
    require(s.val || (o.sample_every == 0 && (!o.given.count("val-every") || o.val_every == 0)),
            "--%s: there are no validation data\n  give --val-data, or a --data folder that has some",
            o.sample_every > 0 ? "sample-every" : "val-every");
    require(o.sample_every == 0 || s.tokenizer,
            "--sample-every needs a tokenizer: give --tokenizer or a --data folder with one");
    require(o.eval_every == 0 || s.tokenizer,
            "--eval-every needs a tokenizer: give --tokenizer or a --data folder with one");
    return s;
}

// The report of a step is waited for in the step after it, so with two steps' batches the host never waits inside one.
Batches::Batches(const DataSources& sources, Place dp, Place cp, bool counts, int64_t batch, int64_t micro_batches,
                 Device device, Stream& compute, bool same_plan, int64_t held)
    : sources_(sources),
      dp_(dp),
      counts_(counts),
      batch_(batch),
      micro_batches_(micro_batches),
      feeder_(device, compute, batch, sources.train->seq_len(), sources.train->vocab(), ahead(micro_batches), same_plan,
              held, sources.documents, cp) {}

DeviceBatch Batches::training(int64_t step, int64_t micro_batch) {
    const int64_t position = samples_before(step) + (micro_batch * dp_.size + dp_.rank) * batch_;
    const DeviceBatch b = feeder_.next(*sources_.train, position);
    if (counts_) hash_ += feeder_.data_hash(), attended_ += feeder_.attention_share() * double(batch_);
    return b;
}

DeviceBatch Batches::validation(int64_t first, int64_t end) {
    return feeder_.next(*sources_.val, first + dp_.rank * batch_, end);
}

uint64_t Batches::take_hash() { return std::exchange(hash_, 0); }
double Batches::take_attended() { return std::exchange(attended_, 0); }

}  // namespace rz
