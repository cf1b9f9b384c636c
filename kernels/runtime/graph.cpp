#include "kernels/runtime/graph.h"

#ifdef RZ_CUDA
#include "kernels/runtime/cuda_check.h"
#endif

namespace rz {

#ifdef RZ_CUDA

Capture::Capture(Stream& stream) : stream_(stream) {
    require(stream.device().is_cuda(), "stream '%s' is the CPU's: only CUDA has graphs", stream.name().c_str());
    // Other threads (a checkpoint being written) may call CUDA meanwhile.
    CUDA_CHECK(cudaStreamBeginCapture(stream.cuda(), cudaStreamCaptureModeThreadLocal));
}

Capture::~Capture() {
    if (!open_) return;
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream_.cuda(), &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
}

Graph Capture::finish() {
    open_ = false;
    cudaGraph_t graph = nullptr;
    CUDA_CHECK(cudaStreamEndCapture(stream_.cuda(), &graph));
    size_t nodes = 0;
    cudaGraphExec_t exec = nullptr;
    const cudaError_t counted = cudaGraphGetNodes(graph, nullptr, &nodes);
    const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    CUDA_CHECK(counted);
    CUDA_CHECK(made);
    Graph out;
    out.exec_ = {exec, [](cudaGraphExec_t e) { cudaGraphExecDestroy(e); }};
    out.nodes_ = int64_t(nodes);
    return out;
}

void Graph::launch(Stream& stream) const {
    require(exec_ != nullptr, "launch of a graph that was never captured");
    CUDA_CHECK(cudaGraphLaunch(exec_.get(), stream.cuda()));
}

#else

Capture::Capture(Stream& stream) : stream_(stream) {
    fail("stream '%s': this program was built without CUDA, which graphs need", stream.name().c_str());
}
Capture::~Capture() = default;
Graph Capture::finish() { fail("a graph of a stream that records nothing"); }
void Graph::launch(Stream&) const { fail("launch of a graph that was never captured"); }

#endif

Graph::Graph(Stream& stream, const std::function<void()>& enqueue) {
    Capture capture(stream);
    enqueue();
    *this = capture.finish();
}

void GraphSet::run(Stream& stream, const Key& key, const std::function<void()>& enqueue) {
    if (!begin(stream, key)) return;
    try {
        enqueue();
    } catch (...) {
        abandon();
        throw;
    }
    end();
}

bool GraphSet::begin(Stream& stream, const Key& key) {
    require(!capture_, "a piece of a graph set was begun inside another");
    const auto piece = pieces_.find(key);
    if (piece == pieces_.end()) {
        if (pieces_.size() < kMostPieces) pieces_.emplace(key, Piece());
        return true;
    }
    if (!piece->second.empty()) {
        for (const Part& part : piece->second) {
            if (part.graph) part.graph.launch(stream);
            if (part.work) part.work();
        }
        ++replayed_;
        return false;
    }
    capture_ = std::make_unique<Capture>(stream);
    recording_ = &piece->second;
    stream_ = &stream;
    return true;
}

// Does what was recorded since the last cut, and then the work after it.
void GraphSet::cut(std::function<void()> work) {
    const std::unique_ptr<Capture> capture = std::move(capture_);
    recording_->push_back({capture->finish(), std::move(work)});
    Part& part = recording_->back();
    if (part.graph.nodes() == 0) part.graph = Graph();
    graphs_ += part.graph ? 1 : 0;
    if (part.graph) part.graph.launch(*stream_);
    if (part.work) part.work();
}

void GraphSet::end() {
    if (!capture_) return;  // the first time: it was enqueued as it is
    cut(nullptr);
    recording_ = nullptr;
    ++recorded_;
    ++replayed_;
}

void GraphSet::abandon() noexcept {
    capture_.reset();
    if (recording_ == nullptr) return;
    recording_->clear();
    recording_ = nullptr;
}

void GraphSet::between(const std::function<void()>& work) {
    if (!capture_) return work();
    cut(work);
    capture_ = std::make_unique<Capture>(*stream_);
}

}  // namespace rz
