"""Tests of what stands in the folder integrations: packages of their own that join ptxgen to other projects."""
