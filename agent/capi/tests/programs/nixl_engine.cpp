// NIXL drops what deregisterMem returns: the engine deregisters memory later that was in use. The library's functions
// that are defined here take the place of its own.
#include "../../../nixl/symrail_nixl.cpp"

#include <set>

namespace {

std::set<symrail_agent_memory> registered;
symrail_agent_memory in_use = 0;
int waits = 0;

int deregister(symrail_agent_memory memory) {
    if (memory == in_use) return SYMRAIL_AGENT_EBUSY;
    return registered.erase(memory) == 1 ? SYMRAIL_AGENT_OK : SYMRAIL_AGENT_EINVAL;
}

void must(bool is, const char *what) {
    if (is) return;
    std::cerr << what << "\n";
    std::exit(1);
}

} // namespace

extern "C" {

int symrail_agent_open(uint32_t, const symrail_agent_options *, symrail_agent *out) { return *out = 1, 0; }
int symrail_agent_close(symrail_agent) { return 0; }
int symrail_agent_register_region(symrail_agent, const symrail_agent_region *region, symrail_agent_memory *out) {
    registered.insert(*out = region->address);
    return 0;
}
int symrail_agent_metadata(symrail_agent, const symrail_agent_memory *, size_t, uint32_t, void *, size_t, size_t *size) {
    return *size = 0, 0;
}
int symrail_agent_deregister(symrail_agent, symrail_agent_memory memory) { return waits++, deregister(memory); }
int symrail_agent_deregister_within(symrail_agent, symrail_agent_memory memory, uint32_t milliseconds) {
    must(milliseconds == 0, "it waits");
    return deregister(memory);
}
}

int main() {
    nixl_b_params_t none;
    nixlBackendInitParams params{};
    params.localAgent = "engine";
    params.customParams = &none;
    Engine engine(&params);
    const auto register_at = [&](uintptr_t address) {
        nixlBlobDesc at;
        at.addr = address, at.len = 8, at.devId = 0;
        nixlBackendMD *memory = nullptr;
        must(engine.registerMem(at, DRAM_SEG, memory) == NIXL_SUCCESS, "registerMem");
        return memory;
    };
    auto *first = register_at(1), *second = register_at(2);
    in_use = 1;
    must(engine.deregisterMem(first) == NIXL_ERR_REPOST_ACTIVE, "memory in use");
    auto *third = register_at(3);
    must(engine.deregisterMem(second) == NIXL_SUCCESS, "deregisterMem");
    must(registered == std::set<symrail_agent_memory>{1, 3}, "what is in use is registered");
    in_use = 0;
    auto *fourth = register_at(4);
    must(registered == std::set<symrail_agent_memory>{3, 4}, "registerMem deregisters what was in use");
    in_use = 3;
    must(engine.deregisterMem(third) == NIXL_ERR_REPOST_ACTIVE, "memory in use");
    in_use = 0;
    must(engine.deregisterMem(fourth) == NIXL_SUCCESS, "deregisterMem");
    must(registered.empty() && waits == 4, "deregisterMem deregisters what was in use");
}
