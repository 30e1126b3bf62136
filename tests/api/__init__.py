"""The service socket, tested over real sockets before a service of our own."""
