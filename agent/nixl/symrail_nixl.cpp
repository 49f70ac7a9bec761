// libplugin_SYMRAIL.so: agents as a back end of NIXL, for host memory (DRAM_SEG) and that of GPUs (VRAM_SEG).
//
// Each engine is one agent with the name of NIXL's. scripts/nixl-plugin.sh compiles this file against the headers of the
// NIXL release that loads it: the classes of NIXL's plugin API have no stable layout.

#include <cassert>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

// NIXL's header for its log names abseil's symbols, which carry abseil's release. Nothing here logs but the macros that
// NIXL's headers use.
#define __NIXL_LOG_H
#define NIXL_ERROR std::cerr << "\nSYMRAIL: "
#define NIXL_ASSERT(condition) assert(condition)

#include "backend/backend_engine.h"
#include "backend/backend_plugin.h"

#include "symrail_agent.h"

namespace {

constexpr size_t LONGEST_NAME = 1024;

nixl_status_t status_of(int code) {
    switch (code) {
    case SYMRAIL_AGENT_OK: return NIXL_SUCCESS;
    case SYMRAIL_AGENT_EINVAL: return NIXL_ERR_INVALID_PARAM;
    case SYMRAIL_AGENT_EUNKNOWN: return NIXL_ERR_NOT_FOUND;
    case SYMRAIL_AGENT_EMETADATA: return NIXL_ERR_MISMATCH;
    case SYMRAIL_AGENT_EBUSY: return NIXL_ERR_REPOST_ACTIVE;
    case SYMRAIL_AGENT_ELOST: return NIXL_ERR_REMOTE_DISCONNECT;
    default: return NIXL_ERR_BACKEND;
    }
}

// The status, and a line about a failure that is not one of the peer's.
nixl_status_t told(int code) {
    if (code != SYMRAIL_AGENT_OK && code != SYMRAIL_AGENT_ELOST)
        std::cerr << std::string("symrail: ") + symrail_agent_error() + "\n";
    return status_of(code);
}

// Memory of this agent, with the metadata that peers load; or memory of a peer, with the metadata that was loaded.
class Memory : public nixlBackendMD {
public:
    Memory(symrail_agent_memory id, std::string metadata)
        : nixlBackendMD(id != 0), id(id), metadata(std::move(metadata)) {}

    const symrail_agent_memory id; // 0 for a peer's
    const std::string metadata;
};

class Request : public nixlBackendReqH {
public:
    explicit Request(symrail_agent_transfer transfer) : transfer(transfer) {}
    ~Request() override { symrail_agent_release(transfer); }

    const symrail_agent_transfer transfer;
};

std::vector<symrail_agent_descriptor> descriptors(const nixl_meta_dlist_t &list) {
    std::vector<symrail_agent_descriptor> all;
    all.reserve(list.descCount());
    for (const auto &one : list) all.push_back({one.addr, one.len});
    return all;
}

// VRAM_SEG is there where a CUDA driver is.
nixl_mem_list_t kinds() {
    nixl_mem_list_t all = {DRAM_SEG};
    if (symrail_agent_memory_kinds() & 1u << SYMRAIL_AGENT_CUDA) all.push_back(VRAM_SEG);
    return all;
}

bool is_known(nixl_mem_t type) { return type == DRAM_SEG || type == VRAM_SEG; }

class Engine : public nixlBackendEngine {
public:
    explicit Engine(const nixlBackendInitParams *params) : nixlBackendEngine(params) {
        const symrail_agent_options options{sizeof options, localAgent.c_str()};
        initErr = told(symrail_agent_open(SYMRAIL_AGENT_ABI, &options, &agent)) != NIXL_SUCCESS;
    }

    ~Engine() override {
        if (agent != 0) symrail_agent_close(agent);
    }

    bool supportsRemote() const override { return true; }
    bool supportsLocal() const override { return true; }
    bool supportsNotif() const override { return true; }
    nixl_mem_list_t getSupportedMems() const override { return kinds(); }

    nixl_status_t registerMem(const nixlBlobDesc &mem, const nixl_mem_t &type, nixlBackendMD *&out) override {
        if (!is_known(type)) return NIXL_ERR_NOT_SUPPORTED;
        deregister_later();
        symrail_agent_memory id = 0;
        const symrail_agent_region region{sizeof region, mem.addr, mem.len,
                                          type == VRAM_SEG ? SYMRAIL_AGENT_CUDA : SYMRAIL_AGENT_HOST,
                                          static_cast<int32_t>(mem.devId)};
        int code = symrail_agent_register_region(agent, &region, &id);
        std::string metadata;
        if (code == SYMRAIL_AGENT_OK) code = exported(&id, 1, 0, metadata);
        if (code == SYMRAIL_AGENT_OK) out = new Memory(id, std::move(metadata));
        else if (id != 0) symrail_agent_deregister(agent, id);
        return told(code);
    }

    nixl_status_t deregisterMem(nixlBackendMD *meta) override {
        const std::unique_ptr<const Memory> memory(static_cast<Memory *>(meta));
        deregister_later();
        const int code = symrail_agent_deregister(agent, memory->id);
        if (code == SYMRAIL_AGENT_EBUSY) {
            const std::lock_guard lock(mutex);
            in_use.push_back(memory->id);
        }
        return told(code);
    }

    nixl_status_t getPublicData(const nixlBackendMD *meta, std::string &out) const override {
        out = static_cast<const Memory *>(meta)->metadata;
        return NIXL_SUCCESS;
    }

    nixl_status_t getConnInfo(std::string &out) const override {
        return told(exported(nullptr, 0, SYMRAIL_AGENT_CONNECTION, out));
    }

    nixl_status_t loadRemoteConnInfo(const std::string &name, const std::string &info) override {
        return load(name, info);
    }

    nixl_status_t loadRemoteMD(const nixlBlobDesc &input, const nixl_mem_t &type, const std::string &name,
                               nixlBackendMD *&out) override {
        if (!is_known(type)) return NIXL_ERR_NOT_SUPPORTED;
        const nixl_status_t status = load(name, input.metaInfo);
        if (status == NIXL_SUCCESS) out = new Memory(0, input.metaInfo);
        return status;
    }

    nixl_status_t loadLocalMD(nixlBackendMD *input, nixlBackendMD *&out) override {
        out = input;
        return NIXL_SUCCESS;
    }

    nixl_status_t unloadMD(nixlBackendMD *meta) override {
        const auto *memory = static_cast<Memory *>(meta);
        // What loadLocalMD returned is deregistered by deregisterMem.
        if (memory->id != 0) return NIXL_SUCCESS;
        // The agent may be forgotten already.
        symrail_agent_unload(agent, memory->metadata.data(), memory->metadata.size());
        delete memory;
        return NIXL_SUCCESS;
    }

    // It begins to connect; transfers wait for the connection.
    nixl_status_t connect(const std::string &name) override {
        return told(symrail_agent_connect(agent, name.c_str(), nullptr));
    }

    nixl_status_t disconnect(const std::string &name) override {
        if (name == localAgent) return NIXL_SUCCESS;
        return status_of(symrail_agent_forget(agent, name.c_str()));
    }

    nixl_status_t prepXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                           const nixl_meta_dlist_t &remote, const std::string &name, nixlBackendReqH *&handle,
                           const nixl_opt_b_args_t * = nullptr) const override {
        if (local.descCount() != remote.descCount()) return NIXL_ERR_INVALID_PARAM;
        const auto here = descriptors(local), there = descriptors(remote);
        const int direction = operation == NIXL_READ ? SYMRAIL_AGENT_READ : SYMRAIL_AGENT_WRITE;
        symrail_agent_transfer transfer = 0;
        const int code =
            symrail_agent_prepare(agent, direction, here.data(), there.data(), here.size(), name.c_str(), &transfer);
        if (code == SYMRAIL_AGENT_OK) handle = new Request(transfer);
        return told(code);
    }

    nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                           const std::string &, nixlBackendReqH *&handle,
                           const nixl_opt_b_args_t *args = nullptr) const override {
        const auto transfer = static_cast<Request *>(handle)->transfer;
        const bool notifies = args != nullptr && args->hasNotif;
        const int code = symrail_agent_post(transfer, notifies ? args->notifMsg.data() : nullptr,
                                            notifies ? args->notifMsg.size() : 0);
        return code == SYMRAIL_AGENT_OK ? checkXfer(handle) : told(code);
    }

    nixl_status_t checkXfer(nixlBackendReqH *handle) const override {
        int done = 0;
        const int code = symrail_agent_test(static_cast<Request *>(handle)->transfer, &done);
        if (code != SYMRAIL_AGENT_OK) return told(code);
        return done != 0 ? NIXL_SUCCESS : NIXL_IN_PROG;
    }

    // What is under way is cancelled.
    nixl_status_t releaseReqH(nixlBackendReqH *handle) const override {
        delete static_cast<Request *>(handle);
        return NIXL_SUCCESS;
    }

    nixl_status_t getNotifs(notif_list_t &list) override {
        std::string name(LONGEST_NAME + 1, '\0'), message(4096, '\0');
        for (;;) {
            size_t size = 0;
            int found = 0;
            const int code = symrail_agent_notification(agent, 0, name.data(), name.size(), message.data(),
                                                        message.size(), &size, &found);
            if (found != 0 && size > message.size()) {
                message.resize(size);
                continue;
            }
            if (code != SYMRAIL_AGENT_OK) return told(code);
            if (found == 0) return NIXL_SUCCESS;
            list.emplace_back(name.c_str(), message.substr(0, size));
        }
    }

    nixl_status_t genNotif(const std::string &name, const std::string &message) const override {
        return told(symrail_agent_notify(agent, name.c_str(), message.data(), message.size()));
    }

private:
    // NIXL gives memory up whatever deregisterMem returns. What was in use is deregistered by later calls.
    void deregister_later() {
        const std::lock_guard lock(mutex);
        std::erase_if(in_use, [this](symrail_agent_memory id) {
            return symrail_agent_deregister_within(agent, id, 0) != SYMRAIL_AGENT_EBUSY;
        });
    }

    // The metadata of registrations.
    int exported(const symrail_agent_memory *memory, size_t count, uint32_t flags, std::string &out) const {
        size_t size = 0;
        out.resize(1024);
        int code = symrail_agent_metadata(agent, memory, count, flags, out.data(), out.size(), &size);
        if (size > out.size()) {
            out.resize(size);
            code = symrail_agent_metadata(agent, memory, count, flags, out.data(), out.size(), &size);
        }
        out.resize(size);
        return code;
    }

    nixl_status_t load(const std::string &name, const std::string &metadata) {
        char loaded[LONGEST_NAME + 1] = "";
        const int code = symrail_agent_load(agent, metadata.data(), metadata.size(), loaded, sizeof loaded);
        if (code != SYMRAIL_AGENT_OK) return told(code);
        return name == loaded ? NIXL_SUCCESS : NIXL_ERR_MISMATCH;
    }

    symrail_agent agent = 0;
    std::mutex mutex;
    std::vector<symrail_agent_memory> in_use;
};

} // namespace

extern "C" NIXL_PLUGIN_EXPORT nixlBackendPlugin *nixl_plugin_init() {
    return nixlBackendPluginCreator<Engine>::create(NIXL_PLUGIN_API_VERSION, "SYMRAIL", SYMRAIL_VERSION, {}, kinds());
}

extern "C" NIXL_PLUGIN_EXPORT void nixl_plugin_fini() {}
