// PyTorch's symmetric memory on Symrail's heap. Nothing of Symrail is linked: the Python package passes a table of
// functions (python/src/torch.rs).
//
// An allocation is local, in memory that all PEs have reserved together. Its offset may differ between PEs, which
// exchange it in the rendezvous. Each group that meets over an allocation has signal pads of its own: slots are
// numbered by the ranks of a group, so that a signal of one group would be another's.
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <map>
#include <mutex>

namespace {

namespace symm = c10d::symmetric_memory;

// The layout of torch.rs. After a failure an address is 0, another result is not 0, and `error` returns the message.
struct Table {
    uint32_t version;
    int32_t gpu;
    uint32_t pe;
    uint32_t reserved;
    const void* context;
    uint64_t (*alloc)(const void*, uint64_t bytes, uint64_t zeroed);
    void (*free)(const void*, uint64_t address);
    uint64_t (*offset)(const void*, uint64_t address);
    uint64_t (*peer)(const void*, uint64_t offset, uint64_t bytes, uint32_t pe);
    uint64_t (*upload)(const void*, const uint64_t* words, uint64_t count);
    void (*release)(const void*, uint64_t address);
    int32_t (*flags)(const void*, uint32_t what, uint64_t pads, uint32_t other, uint32_t channel, uint32_t rank,
                     uint32_t world_size, uint64_t timeout_ms, uint64_t stream);
    const char* (*error)();
};
constexpr uint32_t kVersion = 2;
constexpr uint32_t kBarrier = 0, kPutSignal = 1, kWaitSignal = 2;
constexpr size_t kAlignment = 256;

const Table* table = nullptr;

// Making memory would end a capture, and fail all work of the process that follows.
void must_not_capture(const char* what) {
    TORCH_CHECK(c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None, what,
                " makes memory, which is not possible while a CUDA graph is captured: call it before the capture");
}

// Shared by all handles of one allocation and group.
struct Peers : c10::intrusive_ptr_target {
    int rank = 0, world_size = 0;
    std::vector<void*> buffers, pads;
    uint64_t own_pad = 0, buffers_dev = 0, pads_dev = 0;

    ~Peers() override {
        table->release(table->context, buffers_dev);
        table->release(table->context, pads_dev);
        if (own_pad != 0) table->free(table->context, own_pad);
    }
};

struct Allocation {
    size_t bytes;
    std::optional<std::string> group;
    std::map<std::string, c10::intrusive_ptr<Peers>> peers;
};

class Handle : public symm::SymmetricMemory {
public:
    Handle(c10::intrusive_ptr<Peers> peers, size_t bytes, size_t pad_bytes, size_t offset)
        : peers_(std::move(peers)), bytes_(bytes), pad_bytes_(pad_bytes), offset_(offset) {}

    std::vector<void*> get_buffer_ptrs() override { return peers_->buffers; }
    std::vector<void*> get_signal_pad_ptrs() override { return peers_->pads; }
    void** get_buffer_ptrs_dev() override { return reinterpret_cast<void**>(peers_->buffers_dev); }
    void** get_signal_pad_ptrs_dev() override { return reinterpret_cast<void**>(peers_->pads_dev); }
    size_t get_buffer_size() override { return bytes_; }
    size_t get_offset() override { return offset_; }
    bool has_multicast_support() override { return false; }
    void* get_multicast_ptr() override { return nullptr; }
    int get_rank() override { return peers_->rank; }
    int get_world_size() override { return peers_->world_size; }
    c10::Device get_device() override { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(table->gpu)}; }
    bool world_within_direct_access() override { return true; }
    void barrier(int channel, size_t timeout_ms) override { flags(kBarrier, 0, channel, timeout_ms); }
    void put_signal(int to, int channel, size_t timeout_ms) override { flags(kPutSignal, to, channel, timeout_ms); }
    void wait_signal(int from, int channel, size_t timeout_ms) override {
        flags(kWaitSignal, from, channel, timeout_ms);
    }

private:
    void flags(uint32_t what, int other, int channel, size_t timeout_ms) {
        auto world = static_cast<size_t>(peers_->world_size);
        TORCH_CHECK(channel >= 0 && (channel + 1) * world * sizeof(uint32_t) <= pad_bytes_, "channel ", channel,
                    " of ", world, " PEs is not within signal pads of ", pad_bytes_, " bytes");
        TORCH_CHECK(other >= 0 && other < peers_->world_size, "rank ", other, " of a group of ", world);
        auto stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(table->gpu)).stream();
        auto failed = table->flags(table->context, what, peers_->pads_dev, other, channel, peers_->rank, world,
                                   timeout_ms, reinterpret_cast<uint64_t>(stream));
        TORCH_CHECK(failed == 0, table->error());
    }

    c10::intrusive_ptr<Peers> peers_;
    size_t bytes_, pad_bytes_, offset_;
};

class Allocator : public symm::SymmetricMemoryAllocator {
public:
    void* alloc(size_t size, int device, const std::optional<std::string>& group) override {
        TORCH_CHECK(device < 0 || device == table->gpu, "Symrail's heap is in GPU ", table->gpu, ", not in ", device);
        must_not_capture("an allocation of symmetric memory");
        auto start = table->alloc(table->context, size, 0);
        TORCH_CHECK(start != 0, table->error());
        std::lock_guard<std::mutex> lock(mutex_);
        allocations_[start] = {size, group, {}};
        return reinterpret_cast<void*>(start);
    }

    void free(void* pointer) override {
        std::lock_guard<std::mutex> lock(mutex_);
        auto found = allocations_.find(reinterpret_cast<uint64_t>(pointer));
        if (found == allocations_.end()) return;
        table->free(table->context, found->first);
        allocations_.erase(found);
    }

    size_t get_alloc_size(void* pointer) override {
        std::lock_guard<std::mutex> lock(mutex_);
        return covering(pointer)->second.bytes;
    }

    c10::intrusive_ptr<symm::SymmetricMemory> rendezvous(void* pointer,
                                                         const std::optional<std::string>& named) override {
        std::lock_guard<std::mutex> lock(mutex_);
        auto found = covering(pointer);
        auto& allocation = found->second;
        auto group = named ? named : allocation.group;
        TORCH_CHECK(group.has_value(), "rendezvous: name a group, here or at the allocation");
        auto& peers = allocation.peers[*group];
        if (!peers) {
            must_not_capture("the first rendezvous of a group");
            peers = gather_peers(found->first, allocation, *group);
        }
        auto offset = reinterpret_cast<uint64_t>(pointer) - found->first;
        return c10::make_intrusive<Handle>(peers, allocation.bytes, pad_bytes(), offset);
    }

    bool has_multicast_support(int) override { return false; }
    c10::DeviceType supported_device_type() override { return c10::DeviceType::CUDA; }
    std::string name() override { return "SYMRAIL"; }

private:
    using Allocations = std::map<uint64_t, Allocation>;

    Allocations::iterator covering(void* pointer) {
        auto address = reinterpret_cast<uint64_t>(pointer);
        auto found = allocations_.upper_bound(address);
        TORCH_CHECK(found != allocations_.begin(), "memory that was not allocated by the back end SYMRAIL");
        --found;
        TORCH_CHECK(address - found->first < std::max<size_t>(found->second.bytes, 1),
                    "memory that was not allocated by the back end SYMRAIL");
        return found;
    }

    static size_t pad_bytes() { return (symm::get_signal_pad_size() + kAlignment - 1) / kAlignment * kAlignment; }

    // All ranks of the group exchange their PE and the addresses of their allocation and of its pad for this group.
    c10::intrusive_ptr<Peers> gather_peers(uint64_t start, const Allocation& allocation, const std::string& group) {
        auto ranks = c10d::resolve_process_group(group);
        auto me = ranks->getRank(), size = ranks->getSize();
        auto store = ranks->getStore();
        auto peers = c10::make_intrusive<Peers>();
        peers->rank = me;
        peers->world_size = size;
        peers->own_pad = table->alloc(table->context, pad_bytes(), pad_bytes());
        TORCH_CHECK(peers->own_pad != 0, table->error());
        uint64_t mine[4] = {table->pe, table->offset(table->context, start), allocation.bytes,
                            table->offset(table->context, peers->own_pad)};
        auto key = "symrail/" + group + "/" + std::to_string(meetings_[group]++) + "/";
        auto bytes = reinterpret_cast<const uint8_t*>(mine);
        store->set(key + std::to_string(me), std::vector<uint8_t>(bytes, bytes + sizeof(mine)));
        std::vector<uint64_t> buffers, pads, pes;
        for (int rank = 0; rank < size; rank++) {
            uint64_t theirs[4];
            auto answer = store->get(key + std::to_string(rank));
            TORCH_CHECK(answer.size() == sizeof(theirs), "rank ", rank, " sent ", answer.size(), " bytes");
            std::memcpy(theirs, answer.data(), sizeof(theirs));
            TORCH_CHECK(theirs[2] == allocation.bytes, "rank ", rank, " of group ", group, " has allocated ", theirs[2],
                        " bytes, and rank ", me, " ", allocation.bytes);
            auto pe = static_cast<uint32_t>(theirs[0]);
            auto buffer = table->peer(table->context, theirs[1], allocation.bytes, pe);
            TORCH_CHECK(buffer != 0, "rank ", rank, ": ", table->error());
            auto pad = table->peer(table->context, theirs[3], pad_bytes(), pe);
            TORCH_CHECK(pad != 0, "rank ", rank, ": ", table->error());
            buffers.push_back(buffer);
            pads.push_back(pad);
            pes.push_back(pe);
        }
        for (auto address : buffers) peers->buffers.push_back(reinterpret_cast<void*>(address));
        for (auto address : pads) peers->pads.push_back(reinterpret_cast<void*>(address));
        // Kernels that fail name PEs.
        pads.insert(pads.end(), pes.begin(), pes.end());
        peers->buffers_dev = table->upload(table->context, buffers.data(), buffers.size());
        peers->pads_dev = table->upload(table->context, pads.data(), pads.size());
        TORCH_CHECK(peers->buffers_dev != 0 && peers->pads_dev != 0, table->error());
        return peers;
    }

    std::mutex mutex_;
    Allocations allocations_;
    std::map<std::string, uint64_t> meetings_;
};

}  // namespace

// Registers the back end, once; later tables replace the first. Returns 0, or the version that it expects.
extern "C" uint32_t symrail_register(const Table* given) {
    if (given->version != kVersion) return kVersion;
    bool first = table == nullptr;
    table = given;
    if (first) symm::register_availability("SYMRAIL", c10::make_intrusive<Allocator>());
    return 0;
}
