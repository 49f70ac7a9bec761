// The meeting of a group's ranks: each gives words to all, and then all answer whether they can use what they have.
//
// A store may outlive groups, whose keys repeat. So a rank removes its words when it leaves, also after a failure. If
// they stay because its process was killed, no rank takes them for new ones: each draws a number for each meeting, and
// the keys of answers have the sum of all, so that ranks find one another's answers if they have the same words.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace symrail {

// `Store` is c10d::Store. No call blocks in it: other threads may use the same store.
template <class Store>
class Meeting {
public:
    // The keys begin with `prefix` on all ranks; no later meeting of the group has it.
    Meeting(Store& store, std::string prefix, int rank, int size)
        : store_(store), prefix_(std::move(prefix)), rank_(rank), size_(size) {}
    Meeting(const Meeting&) = delete;
    Meeting& operator=(const Meeting&) = delete;

    ~Meeting() {
        forget(words_of(rank_));
        if (!answered_) forget(answer_of(rank_));
    }

    // The words of all ranks, in their order. Throws if a rank does not come in time.
    template <size_t N>
    std::vector<std::array<uint64_t, N>> exchange(const std::array<uint64_t, N>& own) {
        std::random_device random;
        std::array<uint64_t, N + 1> numbered{static_cast<uint64_t>(random()) << 32 | random()};
        std::copy(own.begin(), own.end(), numbered.begin() + 1);
        store_.set(words_of(rank_), std::string(reinterpret_cast<const char*>(numbered.data()), sizeof(numbered)));
        wait_for("come to a rendezvous", [this](int rank) { return words_of(rank); });
        std::vector<std::array<uint64_t, N>> all(size_);
        for (int rank = 0; rank < size_; rank++) {
            auto theirs = store_.get_to_str(words_of(rank));
            if (theirs.size() != sizeof(numbered)) {
                throw std::runtime_error("rank " + std::to_string(rank) + " sent " + std::to_string(theirs.size()) +
                                         " bytes, as another version of Symrail does");
            }
            std::memcpy(numbered.data(), theirs.data(), sizeof(numbered));
            sum_ += numbered[0];
            std::copy(numbered.begin() + 1, numbered.end(), all[rank].begin());
        }
        return all;
    }

    // What all ranks answer, in their order: nothing, or why a rank cannot use the words. Throws if a rank does not
    // answer in time.
    std::vector<std::string> answers(const std::string& own) {
        // No store has to keep empty values.
        store_.set(answer_of(rank_), "." + own);
        wait_for("answered in a rendezvous (or the store has keys of processes that were killed: use another one)",
                 [this](int rank) { return answer_of(rank); });
        std::vector<std::string> all;
        for (int rank = 0; rank < size_; rank++) all.push_back(store_.get_to_str(answer_of(rank)).substr(1));
        answered_ = true;
        try {
            // The last one to have read them removes them.
            if (store_.add(answer_of(size_), 1) == size_) {
                for (int rank = 0; rank <= size_; rank++) forget(answer_of(rank));
            }
        } catch (const std::exception&) {
            // No other meeting has these keys.
        }
        return all;
    }

private:
    std::string words_of(int rank) const { return prefix_ + std::to_string(rank); }
    std::string answer_of(int rank) const { return prefix_ + std::to_string(sum_) + "/" + std::to_string(rank); }

    void forget(const std::string& key) noexcept {
        try {
            store_.deleteKey(key);
        } catch (const std::exception&) {
            // A store that is gone has no keys.
        }
    }

    template <class Key>
    void wait_for(const char* what, Key key) {
        auto limit = store_.getTimeout();
        auto begin = std::chrono::steady_clock::now();
        std::vector<std::string> keys;
        for (int rank = 0; rank < size_; rank++) keys.push_back(key(rank));
        for (auto pause = std::chrono::milliseconds(1); !store_.check(keys); pause = std::min(2 * pause, kLongest)) {
            // 0 stands for no limit.
            if (limit.count() > 0 && std::chrono::steady_clock::now() - begin > limit) {
                std::string missing;
                for (int rank = 0; rank < size_; rank++) {
                    if (!store_.check({keys[rank]})) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
                }
                throw std::runtime_error("ranks that have not " + std::string(what) + " within " +
                                         std::to_string(limit.count()) + " ms, the store's time-out: " + missing);
            }
            std::this_thread::sleep_for(pause);
        }
    }

    static constexpr std::chrono::milliseconds kLongest{20};

    Store& store_;
    std::string prefix_;
    int rank_, size_;
    // Of the numbers that all ranks have drawn.
    uint64_t sum_ = 0;
    bool answered_ = false;
};

}  // namespace symrail
