// Ranks of one process meet over a store in memory. Prints `well`, or what is wrong.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "meeting.hpp"

namespace {

using Words = std::array<uint64_t, 2>;
using std::chrono::milliseconds;

// What a meeting needs of c10d::Store.
struct Store {
    milliseconds timeout{60'000};
    bool keeps = false;

    void set(const std::string& key, const std::string& value) {
        std::lock_guard<std::mutex> lock(mutex);
        values[key] = value;
    }
    std::string get_to_str(const std::string& key) {
        std::lock_guard<std::mutex> lock(mutex);
        return values.at(key);
    }
    int64_t add(const std::string& key, int64_t more) {
        std::lock_guard<std::mutex> lock(mutex);
        auto sum = (values.count(key) != 0 ? std::stoll(values[key]) : 0) + more;
        values[key] = std::to_string(sum);
        return sum;
    }
    bool deleteKey(const std::string& key) {
        std::lock_guard<std::mutex> lock(mutex);
        return !keeps && values.erase(key) != 0;
    }
    bool check(const std::vector<std::string>& keys) {
        std::lock_guard<std::mutex> lock(mutex);
        return std::all_of(keys.begin(), keys.end(), [this](const auto& key) { return values.count(key) != 0; });
    }
    milliseconds getTimeout() const { return timeout; }

    std::mutex mutex;
    std::map<std::string, std::string> values;
};

void must(bool holds, const std::string& what) {
    if (holds) return;
    std::printf("%s\n", what.c_str());
    std::exit(1);
}

// The answers of all ranks. Checks their words, which depend on `lap`.
std::vector<std::string> meet(Store& store, const std::string& prefix, int rank, int size, uint64_t lap,
                              const std::string& answer = {}) {
    symrail::Meeting meeting(store, prefix, rank, size);
    auto all = meeting.exchange(Words{lap, static_cast<uint64_t>(rank)});
    auto answers = meeting.answers(answer);
    for (uint64_t other = 0; other < all.size(); other++) {
        must(all[other] == Words{lap, other}, "words of another meeting, or of another rank");
    }
    return answers;
}

template <class Body>
void each_rank(int size, Body body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; rank++) threads.emplace_back(body, rank);
    for (auto& thread : threads) thread.join();
}

// The error of a rank to which another one does not come.
template <class Body>
std::string alone(Store& store, Body body) {
    auto limit = std::exchange(store.timeout, milliseconds(20));
    std::string error;
    try {
        body();
    } catch (const std::exception& caught) {
        error = caught.what();
    }
    store.timeout = limit;
    return error;
}

void keys_repeat() {
    Store store;
    for (uint64_t group = 0; group < 3; group++) {
        each_rank(3, [&](int rank) {
            for (uint64_t number = 0; number < 20; number++) {
                meet(store, "1/" + std::to_string(number) + "/", rank, 3, 100 * group + number);
            }
        });
        must(store.values.empty(), "keys are left");
    }
}

void one_cannot() {
    Store store;
    each_rank(3, [&](int rank) {
        auto answers = meet(store, "1/0/", rank, 3, 0, rank == 1 ? "no memory" : "");
        must(answers == std::vector<std::string>{"", "no memory", ""}, "another answer");
        meet(store, "1/1/", rank, 3, 1);
    });
}

void one_does_not_come() {
    Store store;
    auto error = alone(store, [&] { meet(store, "1/0/", 0, 2, 1000); });
    must(error.find("come to a rendezvous") != error.npos && error.ends_with(": 1"), "not named: " + error);
    must(store.values.empty(), "the rank that came has left keys");
    each_rank(2, [&](int rank) { meet(store, "1/0/", rank, 2, 1); });
}

void one_was_killed() {
    Store store;
    store.keeps = true;
    each_rank(2, [&](int rank) { meet(store, "1/0/", rank, 2, 0); });
    auto error = alone(store, [&] { meet(store, "1/0/", 0, 2, 1000); });
    must(error.find("answered in a rendezvous") != error.npos, "it met one that is gone: " + error);
}

void all_break_off() {
    Store store;
    {
        symrail::Meeting one(store, "1/0/", 0, 2), other(store, "1/0/", 1, 2);
        each_rank(2, [&](int rank) { (rank == 0 ? one : other).exchange(Words{0, 0}); });
        must(store.values.size() == 2, "words of each");
        auto error = alone(store, [&] { one.answers(""); });
        must(error.ends_with(": 1"), "not named: " + error);
    }
    must(store.values.empty(), "keys are left");
}

}  // namespace

int main() {
    keys_repeat();
    one_cannot();
    one_does_not_come();
    one_was_killed();
    all_break_off();
    std::printf("well\n");
}
