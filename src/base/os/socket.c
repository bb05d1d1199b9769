/* SPDX-License-Identifier: MIT */
/* Unix sockets with abstract names. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/os/fault.h"
#include "base/os/os.h"

static socklen_t fill_address(const char *name, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t length = strnlen(name, OS_SOCKET_NAME_BYTES - 1);
    _Static_assert(OS_SOCKET_NAME_BYTES < sizeof address->sun_path, "a name fits behind the first byte");
    /* sun_path[0] stays 0: an abstract name. */
    memcpy(address->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

int os_socket(void)
{
    return os_fault("socket") ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

int os_socket_listen(int fd, const char *name)
{
    struct sockaddr_un address;
    socklen_t address_bytes = fill_address(name, &address);
    if (os_fault("listen") || bind(fd, (struct sockaddr *)&address, address_bytes) != 0) {
        return -1;
    }
    return listen(fd, SOMAXCONN);
}

bool os_socket_is_listening(int fd)
{
    int is_listening = 0;
    socklen_t bytes = sizeof is_listening;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &bytes) == 0 && is_listening != 0;
}

int os_socket_accept(int listener)
{
    return os_fault("accept") ? -1 : accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

int os_socket_connect(int fd, const char *name)
{
    struct sockaddr_un address;
    socklen_t address_bytes = fill_address(name, &address);
    int result;
    if (os_fault("connect")) {
        return -1;
    }
    do {
        result = connect(fd, (struct sockaddr *)&address, address_bytes);
    } while (result != 0 && errno == EINTR);
    return result;
}

int os_socket_peer(int fd, struct os_peer *peer_out)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    if (os_fault("peer") || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
        return -1;
    }
    *peer_out = (struct os_peer){.user = (int64_t)peer.uid, .process = (int64_t)peer.pid};
    return 0;
}
