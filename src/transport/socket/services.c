/* SPDX-License-Identifier: MIT */
/* What the library gave to the module. */
#include "transport/socket/socket.h"

const struct transport_services *socket_services;
