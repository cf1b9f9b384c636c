#include "kernels/runtime/graph.h"

#ifdef RZ_CUDA
#include "kernels/runtime/cuda_check.h"
#endif

namespace rz {

#ifdef RZ_CUDA

Graph::Graph(Stream& stream, const std::function<void()>& enqueue) {
    require(stream.device().is_cuda(), "stream '%s' is the CPU's: only CUDA has graphs", stream.name().c_str());
    // Other threads (a checkpoint being written) may call CUDA meanwhile.
    CUDA_CHECK(cudaStreamBeginCapture(stream.cuda(), cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
        enqueue();
    } catch (...) {
        cudaStreamEndCapture(stream.cuda(), &graph);
        if (graph) cudaGraphDestroy(graph);
        cudaGetLastError();
        throw;
    }
    CUDA_CHECK(cudaStreamEndCapture(stream.cuda(), &graph));
    size_t nodes = 0;
    cudaGraphExec_t exec = nullptr;
    const cudaError_t counted = cudaGraphGetNodes(graph, nullptr, &nodes);
    const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    CUDA_CHECK(counted);
    CUDA_CHECK(made);
    exec_ = {exec, [](cudaGraphExec_t e) { cudaGraphExecDestroy(e); }};
    nodes_ = int64_t(nodes);
}

void Graph::launch(Stream& stream) const {
    require(exec_ != nullptr, "launch of a graph that was never captured");
    CUDA_CHECK(cudaGraphLaunch(exec_.get(), stream.cuda()));
}

#else

Graph::Graph(Stream& stream, const std::function<void()>&) {
    fail("stream '%s': this program was built without CUDA, which graphs need", stream.name().c_str());
}
void Graph::launch(Stream&) const { fail("launch of a graph that was never captured"); }

#endif

void GraphSet::run(Stream& stream, const Key& key, const std::function<void()>& enqueue) {
    auto piece = pieces_.find(key);
    if (piece == pieces_.end()) {
        if (pieces_.size() < kMostPieces) pieces_.emplace(key, Graph());
        return enqueue();
    }
    if (!piece->second) {
        piece->second = Graph(stream, enqueue);
        ++recorded_;
    }
    piece->second.launch(stream);
    ++replayed_;
}

}  // namespace rz
