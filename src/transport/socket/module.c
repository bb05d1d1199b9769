/* SPDX-License-Identifier: MIT */
/* What the library asks of the module. */
#include "transport/socket/socket.h"

const struct transport *shoal_transport_module(const struct transport_services *services)
{
    if (!transport_services_fit(services)) {
        return NULL;
    }
    socket_services = services;
    return services->message_transport(&socket_kind);
}
