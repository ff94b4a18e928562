extern "C" int ncclStub() { return 0; }
