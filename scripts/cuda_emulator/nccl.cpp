// An emulated NCCL between processes of one computer: what Tealight calls of it, on the emulated driver (driver.cpp).
// Transfers go through named pipes. The emulated driver runs a stream's work only when the program waits for it. A
// transfer that began only then could wait for a rank that is itself waiting. So `ncclGroupEnd` runs the work that the
// stream was given before the group, starts the transfers of the group on threads, and gives the stream the task of
// waiting for these threads.
//
// It is stricter than NCCL: a message that is not as long as the receiver expects, or does not lie within an allocation,
// ends the process.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

extern "C" int cuLaunchHostFunc(void* stream, void (*work)(void*), void* data);
extern "C" int cuStreamSynchronize(void* stream);
extern "C" bool tealight_emulated_memory_has(uint64_t address, size_t n);

namespace {

enum : int { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, BYTE = 1 };

struct Id {
    char folder[128];
};

// A rank, with a pipe to and from each of them.
struct Job {
    std::vector<int> to, from;
};

struct Message {
    bool is_sent;
    int pipe;
    unsigned char* bytes;
    uint64_t n;
};

[[noreturn]] void stop(const std::string& what) {
    fprintf(stderr, "emulated NCCL: %s\n", what.c_str());
    abort();
}

void write_all(int pipe, const void* bytes, uint64_t n) {
    for (auto* at = static_cast<const unsigned char*>(bytes); n > 0;) {
        ssize_t written = write(pipe, at, n);
        if (written <= 0) stop("a pipe is broken");
        at += written, n -= written;
    }
}

void read_all(int pipe, void* bytes, uint64_t n) {
    for (auto* at = static_cast<unsigned char*>(bytes); n > 0;) {
        ssize_t got = read(pipe, at, n);
        if (got <= 0) stop("a pipe is broken");
        at += got, n -= got;
    }
}

void move(const Message& message) {
    if (message.is_sent) {
        write_all(message.pipe, &message.n, sizeof message.n);
        return write_all(message.pipe, message.bytes, message.n);
    }
    uint64_t n;
    read_all(message.pipe, &n, sizeof n);
    if (n != message.n) stop(std::to_string(n) + " bytes were sent, and " + std::to_string(message.n) + " are expected");
    read_all(message.pipe, message.bytes, n);
}

// The messages of a group, and a thread for each once they have begun.
struct Group {
    std::vector<Message> messages;
    std::vector<std::thread> threads;

    void start() {
        for (auto& message : messages) threads.emplace_back([&message] { move(message); });
    }

    static void finish(void* data) {
        auto* group = static_cast<Group*>(data);
        for (auto& thread : group->threads) thread.join();
        delete group;
    }
};

struct Open {
    int depth = 0;
    void* stream = nullptr;
    Group group;
};
thread_local Open now;

int add(bool is_sent, const void* bytes, size_t n, int type, int pipe, void* stream) {
    if (now.depth == 0 || type != BYTE) return INVALID_ARGUMENT;
    if (!tealight_emulated_memory_has(reinterpret_cast<uint64_t>(bytes), n)) stop("a message outside of an allocation");
    if (!now.group.messages.empty() && now.stream != stream) stop("a group in two streams");
    now.stream = stream;
    now.group.messages.push_back({is_sent, pipe, static_cast<unsigned char*>(const_cast<void*>(bytes)), n});
    return SUCCESS;
}

} // namespace

extern "C" {

int ncclGetUniqueId(Id* id) {
    *id = {};
    strcpy(id->folder, "/tmp/tealight-nccl-XXXXXX");
    return mkdtemp(id->folder) ? SUCCESS : SYSTEM_ERROR;
}

int ncclCommInitRank(void** handle, int n_ranks, Id id, int rank) {
    auto* job = new Job;
    auto name = [&](int from, int to) {
        return std::string(id.folder) + "/" + std::to_string(from) + "-" + std::to_string(to);
    };
    auto open_pipe = [](const std::string& path) {
        mkfifo(path.c_str(), 0600);
        // For reading and writing, so that it does not wait for the other side.
        return open(path.c_str(), O_RDWR);
    };
    for (int peer = 0; peer < n_ranks; peer++) {
        job->to.push_back(open_pipe(name(rank, peer)));
        job->from.push_back(open_pipe(name(peer, rank)));
        if (job->to.back() < 0 || job->from.back() < 0) return SYSTEM_ERROR;
    }
    // All have opened all pipes when each has heard from all; then their names can go.
    char hello = 0;
    for (int pipe : job->to) write_all(pipe, &hello, 1);
    for (int pipe : job->from) read_all(pipe, &hello, 1);
    for (int peer = 0; peer < n_ranks; peer++) unlink(name(rank, peer).c_str());
    rmdir(id.folder);
    return *handle = job, SUCCESS;
}

int ncclGroupStart() { return now.depth++, SUCCESS; }

int ncclGroupEnd() {
    if (--now.depth > 0 || now.group.messages.empty()) return SUCCESS;
    auto* group = new Group(std::move(now.group));
    now.group = {};
    if (cuStreamSynchronize(now.stream) != 0) {
        delete group;
        return SYSTEM_ERROR;
    }
    group->start();
    return cuLaunchHostFunc(now.stream, Group::finish, group);
}

int ncclSend(const void* bytes, size_t n, int type, int peer, Job* job, void* stream) {
    return add(true, bytes, n, type, job->to.at(peer), stream);
}

int ncclRecv(void* bytes, size_t n, int type, int peer, Job* job, void* stream) {
    return add(false, bytes, n, type, job->from.at(peer), stream);
}

const char* ncclGetErrorString(int) { return "an error of the emulated NCCL"; }

} // extern "C"
