"""A model of ptxgen as a worker of NVIDIA Dynamo: token ids in, token ids out, on the scheduler that `ptxrun serve` runs, too.
Routing, texts and HTTP are the business of Dynamo's frontend."""
