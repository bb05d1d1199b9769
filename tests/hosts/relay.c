/* SPDX-License-Identifier: MIT */
/*
 * relay DELAY_MS LOSS_PERCENT PROCESS:INTERFACE:ADDRESS...: a network that is slow and loses packets, for tests.
 *
 * Makes one TUN device in the network namespace of each process, and passes IPv4 packets between them by their destination.
 * Each packet arrives DELAY_MS later; LOSS_PERCENT of them (by a fixed sequence of random numbers) do not. Stands in for
 * netem, which not every kernel has. Ends with its caller, and the devices end with it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_LINKS = 64,
    PACKET_BYTES = 2048,
    IP_HEADER_BYTES = 20,
    /* Power of two. More packets than these on the way are lost, as in any router. */
    QUEUE_PACKETS = 16384
};

struct link {
    int fd;
    uint32_t address;
};

struct packet {
    int64_t due_ns;
    int to;
    size_t n_bytes;
    unsigned char bytes[PACKET_BYTES];
};

struct relay {
    int64_t delay_ns;
    double loss;
    uint64_t random;
    struct link links[MAX_LINKS];
    int n_links;
    /* Due in the order in which they came: the delay is the same for all. */
    struct packet *queue;
    size_t first, end;
};

static int64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* splitmix64 */
static double next_random(struct relay *relay)
{
    uint64_t z = relay->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

/* A device in the namespace that this process is in. */
static int open_tun(const char *interface)
{
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    (void)snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0) {
        die("/dev/net/tun");
    }
    return fd;
}

static void add_link(struct relay *relay, const char *word, int own_namespace)
{
    char path[64], interface[16], address[32];
    int process;
    struct link *link = &relay->links[relay->n_links];
    if (relay->n_links == MAX_LINKS || sscanf(word, "%d:%15[^:]:%31s", &process, interface, address) != 3 ||
        inet_pton(AF_INET, address, &link->address) != 1) {
        fprintf(stderr, "relay: '%s' is not PROCESS:INTERFACE:ADDRESS\n", word);
        exit(2);
    }
    (void)snprintf(path, sizeof path, "/proc/%d/ns/net", process);
    int namespace = open(path, O_RDONLY | O_CLOEXEC);
    if (namespace < 0 || setns(namespace, CLONE_NEWNET) != 0) {
        die(path);
    }
    link->fd = open_tun(interface);
    (void)close(namespace);
    if (setns(own_namespace, CLONE_NEWNET) != 0) {
        die("setns");
    }
    relay->n_links++;
}

/* By its destination; -1: nobody here. */
static int find_link(const struct relay *relay, const unsigned char *packet)
{
    uint32_t destination;
    memcpy(&destination, packet + 16, sizeof destination);
    for (int i = 0; i < relay->n_links; i++) {
        if (relay->links[i].address == destination) {
            return i;
        }
    }
    return -1;
}

static void take_packets(struct relay *relay, int from)
{
    for (;;) {
        struct packet *packet = &relay->queue[relay->end % QUEUE_PACKETS];
        unsigned char dropped[PACKET_BYTES];
        bool is_full = relay->end - relay->first == QUEUE_PACKETS;
        unsigned char *bytes = is_full ? dropped : packet->bytes;
        ssize_t n_bytes = read(relay->links[from].fd, bytes, PACKET_BYTES);
        if (n_bytes < 0) {
            return;
        }
        bool is_ipv4 = n_bytes >= IP_HEADER_BYTES && bytes[0] >> 4 == 4;
        int to = is_ipv4 ? find_link(relay, bytes) : -1;
        if (to < 0 || is_full || next_random(relay) < relay->loss) {
            continue;
        }
        packet->due_ns = now_ns() + relay->delay_ns;
        packet->to = to;
        packet->n_bytes = (size_t)n_bytes;
        relay->end++;
    }
}

/* What is due; a device that is down or full loses it. */
static void send_packets(struct relay *relay)
{
    int64_t now = now_ns();
    while (relay->first < relay->end && relay->queue[relay->first % QUEUE_PACKETS].due_ns <= now) {
        const struct packet *packet = &relay->queue[relay->first % QUEUE_PACKETS];
        (void)!write(relay->links[packet->to].fd, packet->bytes, packet->n_bytes);
        relay->first++;
    }
}

static void pass_packets(struct relay *relay)
{
    struct pollfd polls[MAX_LINKS];
    for (;;) {
        struct timespec left = {0};
        for (int i = 0; i < relay->n_links; i++) {
            polls[i] = (struct pollfd){.fd = relay->links[i].fd, .events = POLLIN};
        }
        if (relay->first < relay->end) {
            int64_t left_ns = relay->queue[relay->first % QUEUE_PACKETS].due_ns - now_ns();
            left_ns = left_ns < 0 ? 0 : left_ns;
            left = (struct timespec){.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};
        }
        (void)ppoll(polls, (nfds_t)relay->n_links, relay->first < relay->end ? &left : NULL, NULL);
        for (int i = 0; i < relay->n_links; i++) {
            if (polls[i].revents & POLLIN) {
                take_packets(relay, i);
            }
        }
        send_packets(relay);
    }
}

static double read_number(const char *text, const char *what, double most)
{
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end || !(number >= 0 && number <= most)) {
        fprintf(stderr, "relay: %s is '%s', 0 to %g expected\n", what, text, most);
        exit(2);
    }
    return number;
}

int main(int argc, char **argv)
{
    static struct relay relay = {.random = 1};
    if (argc < 4) {
        fprintf(stderr, "usage: relay DELAY_MS LOSS_PERCENT PROCESS:INTERFACE:ADDRESS...\n");
        return 2;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    relay.delay_ns = (int64_t)(read_number(argv[1], "the delay", 10000) * 1e6);
    relay.loss = read_number(argv[2], "the loss", 100) / 100;
    relay.queue = calloc(QUEUE_PACKETS, sizeof *relay.queue);
    int own_namespace = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (!relay.queue || own_namespace < 0) {
        die("start");
    }
    for (int i = 3; i < argc; i++) {
        add_link(&relay, argv[i], own_namespace);
    }
    pass_packets(&relay);
}
