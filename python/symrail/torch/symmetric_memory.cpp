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
#include <utility>

#include "meeting.hpp"

// Of Python's stable interface, whose headers need not be installed.
extern "C" {
int PyGILState_Check();
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
}

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

constexpr const char* kForeign = "memory that was not allocated by the back end SYMRAIL";

// Making memory would end a capture, and fail all work of the process that follows. Why it is not possible, or nothing.
std::string is_capturing(const std::string& what) {
    if (c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None) return {};
    return what + " makes memory, which is not possible while a CUDA graph is captured: call it before the capture";
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

// A process group. After destroy_process_group another one may have its name.
struct Group {
    explicit Group(const c10::intrusive_ptr<c10d::ProcessGroup>& of) : of(of) {}

    c10::weak_intrusive_ptr<c10d::ProcessGroup> of;
    // Held while its ranks meet, which waits for them.
    std::mutex meeting;
    // How many meetings have begun.
    uint64_t meetings = 0;
};

struct Allocation {
    size_t bytes;
    std::optional<std::string> group;
    std::map<std::shared_ptr<Group>, c10::intrusive_ptr<Peers>> peers;
};

// Lets other threads of Python run while this one waits for other ranks: PyTorch's calls keep the interpreter's lock.
class OthersRun {
public:
    OthersRun() : thread_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
    OthersRun(const OthersRun&) = delete;
    OthersRun& operator=(const OthersRun&) = delete;
    ~OthersRun() {
        if (thread_) PyEval_RestoreThread(thread_);
    }

private:
    void* thread_;
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
        auto wrong = is_capturing("an allocation of symmetric memory");
        TORCH_CHECK(wrong.empty(), wrong);
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
        auto found = covering(pointer);
        TORCH_CHECK(found.start != 0, kForeign);
        return found.bytes;
    }

    c10::intrusive_ptr<symm::SymmetricMemory> rendezvous(void* pointer,
                                                         const std::optional<std::string>& named) override {
        auto found = covering(pointer);
        auto name = named ? named : found.group;
        TORCH_CHECK(found.start != 0 || named, kForeign);
        TORCH_CHECK(name.has_value(), "rendezvous: name a group, here or at the allocation");
        auto ranks = c10d::resolve_process_group(*name);
        auto group = group_of(*name, ranks);
        OthersRun others_run;
        std::lock_guard<std::mutex> meets(group->meeting);
        auto peers = met(found.start, group);
        if (!peers) {
            // The number counts failed meetings, too: it is the same on all ranks.
            peers = gather_peers(found, *ranks, "symrail/" + *name + "/" + std::to_string(group->meetings++) + "/");
            std::lock_guard<std::mutex> lock(mutex_);
            allocations_.at(found.start).peers[group] = peers;
        }
        auto offset = reinterpret_cast<uint64_t>(pointer) - found.start;
        return c10::make_intrusive<Handle>(peers, found.bytes, pad_bytes(), offset);
    }

    bool has_multicast_support(int) override { return false; }
    c10::DeviceType supported_device_type() override { return c10::DeviceType::CUDA; }
    std::string name() override { return "SYMRAIL"; }

private:
    // An allocation; the start is 0 for memory that is in none.
    struct Found {
        uint64_t start = 0;
        size_t bytes = 0;
        std::optional<std::string> group;
    };

    Found covering(void* pointer) {
        std::lock_guard<std::mutex> lock(mutex_);
        auto address = reinterpret_cast<uint64_t>(pointer);
        auto found = allocations_.upper_bound(address);
        if (found == allocations_.begin()) return {};
        const auto& [start, allocation] = *--found;
        if (address - start >= std::max<size_t>(allocation.bytes, 1)) return {};
        return {start, allocation.bytes, allocation.group};
    }

    std::shared_ptr<Group> group_of(const std::string& name, const c10::intrusive_ptr<c10d::ProcessGroup>& ranks) {
        std::lock_guard<std::mutex> lock(mutex_);
        auto& group = groups_[name];
        if (!group || group->of.lock() != ranks) group = std::make_shared<Group>(ranks);
        return group;
    }

    // The peers of an allocation in this group, if it has met over it.
    c10::intrusive_ptr<Peers> met(uint64_t start, const std::shared_ptr<Group>& group) {
        std::lock_guard<std::mutex> lock(mutex_);
        auto allocation = allocations_.find(start);
        if (allocation == allocations_.end()) return {};
        auto peers = allocation->second.peers.find(group);
        return peers == allocation->second.peers.end() ? c10::intrusive_ptr<Peers>() : peers->second;
    }

    static size_t pad_bytes() { return (symm::get_signal_pad_size() + kAlignment - 1) / kAlignment * kAlignment; }

    // A rank's PE, where its allocation and its pad are, the bytes of the allocation, and whether it has all these.
    using Words = std::array<uint64_t, 5>;

    // All ranks of the group exchange where their allocation and its pad for this group are. What a rank cannot do it
    // says to the others, which would wait for it.
    static c10::intrusive_ptr<Peers> gather_peers(const Found& found, c10d::ProcessGroup& ranks,
                                                  const std::string& prefix) {
        auto peers = c10::make_intrusive<Peers>();
        peers->rank = ranks.getRank();
        peers->world_size = ranks.getSize();
        auto store = ranks.getStore();
        symrail::Meeting meeting(*store, prefix, peers->rank, peers->world_size);
        Words mine = {table->pe};
        auto wrong = prepare(found, *peers);
        if (wrong.empty()) {
            auto offset = [](uint64_t address) { return table->offset(table->context, address); };
            mine = {table->pe, offset(found.start), offset(peers->own_pad), found.bytes, 1};
        }
        auto all = meeting.exchange(mine);
        if (wrong.empty()) wrong = map_peers(all, found.bytes, *peers);
        // If an answer does not come, others may have all, and use this rank's pad: then it is not freed.
        auto pad = std::exchange(peers->own_pad, 0);
        auto answers = meeting.answers(wrong);
        peers->own_pad = pad;
        TORCH_CHECK(wrong.empty(), wrong);
        for (size_t rank = 0; rank < answers.size(); rank++) {
            TORCH_CHECK(answers[rank].empty(), "rank ", rank, " says: ", answers[rank]);
        }
        return peers;
    }

    // Makes this rank's pad. Why that is not possible, or nothing.
    static std::string prepare(const Found& found, Peers& peers) {
        if (found.start == 0) return kForeign;
        auto wrong = is_capturing("the first rendezvous of a group");
        if (!wrong.empty()) return wrong;
        peers.own_pad = table->alloc(table->context, pad_bytes(), pad_bytes());
        return peers.own_pad == 0 ? table->error() : "";
    }

    // Maps all ranks' allocations and pads. Why that is not possible, or nothing; also if a rank that has none says so.
    static std::string map_peers(const std::vector<Words>& all, size_t bytes, Peers& peers) {
        std::vector<uint64_t> buffers, pads, pes;
        for (size_t rank = 0; rank < all.size(); rank++) {
            auto [pe, buffer_offset, pad_offset, their_bytes, is_there] = all[rank];
            if (is_there == 0) return {};
            auto who = "rank " + std::to_string(rank);
            if (their_bytes != bytes) {
                return who + " has allocated " + std::to_string(their_bytes) + " bytes, and rank " +
                       std::to_string(peers.rank) + " " + std::to_string(bytes);
            }
            auto buffer = table->peer(table->context, buffer_offset, bytes, static_cast<uint32_t>(pe));
            if (buffer == 0) return who + ": " + table->error();
            auto pad = table->peer(table->context, pad_offset, pad_bytes(), static_cast<uint32_t>(pe));
            if (pad == 0) return who + ": " + table->error();
            buffers.push_back(buffer);
            pads.push_back(pad);
            pes.push_back(pe);
        }
        for (auto address : buffers) peers.buffers.push_back(reinterpret_cast<void*>(address));
        for (auto address : pads) peers.pads.push_back(reinterpret_cast<void*>(address));
        // Kernels that fail name PEs.
        pads.insert(pads.end(), pes.begin(), pes.end());
        peers.buffers_dev = table->upload(table->context, buffers.data(), buffers.size());
        if (peers.buffers_dev != 0) peers.pads_dev = table->upload(table->context, pads.data(), pads.size());
        return peers.pads_dev == 0 ? table->error() : "";
    }

    // Not held while ranks meet.
    std::mutex mutex_;
    std::map<uint64_t, Allocation> allocations_;
    std::map<std::string, std::shared_ptr<Group>> groups_;
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
