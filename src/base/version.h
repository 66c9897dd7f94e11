/* The version of the program. */
#ifndef DMUON_BASE_VERSION_H
#define DMUON_BASE_VERSION_H

#define DMUON_VERSION "0.1.0"

#endif
