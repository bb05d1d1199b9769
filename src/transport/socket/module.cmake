# SPDX-License-Identifier: MIT
shoal_add_transport_module(socket endpoint.c meet.c module.c services.c)
