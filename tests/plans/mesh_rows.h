// The worked examples of mesh planning: one row a line, "NAME [generation] strategy Wworld sizes ->
// result". Sizes "-" = none given. Result: shape, then "moe" shape, then F = FSDP mesh, then
// groups: "/" separates groups, "/../" leaves out all but the first and the last, names joined by
// "=" have the same groups. rep, shard, sc, dc, eps = dp_replicate, dp_shard, dp_shard_cp, dp_cp,
// ep_shard. "V", "R" = refused.
#pragma once

inline constexpr const char* kMeshRows = R"rows(
1  fsdp2 W1  -                      -> 1x1x1x1x1; F shard 1
2  fsdp2 W2  -                      -> 1x1x2x1x1; F shard 2; shard=dp=sc=dc 0,1
3  fsdp2 W4  tp=4                   -> 1x1x1x1x4; F shard 1; tp 0-3
4  fsdp2 W4  tp=2                   -> 1x1x2x1x2; F shard 2; shard=dp=sc=dc 0,2/1,3; tp 0,1/2,3
5  fsdp2 W4  cp=2                   -> 1x1x2x2x1; F sc 4; shard=dp 0,2/1,3; cp 0,1/2,3; sc=dc 0-3
6  fsdp2 W4  pp=2                   -> 2x1x2x1x1; F shard 2; pp 0,2/1,3; shard=dp=sc=dc 0,1/2,3
7  fsdp2 W8  tp=2 pp=2              -> 2x1x2x1x2; F shard 2; pp 0,4/1,5/2,6/3,7; shard=dp=sc=dc 0,2/1,3/4,6/5,7; tp 0,1/2,3/4,5/6,7
8  fsdp2 W8  tp=2 cp=2              -> 1x1x2x2x2; F sc 4; shard=dp 0,4/1,5/2,6/3,7; cp 0,2/1,3/4,6/5,7; tp 0,1/2,3/4,5/6,7; sc=dc 0,2,4,6/1,3,5,7
9  fsdp2 W8  rep=2                  -> 1x2x4x1x1; F rep 2 x shard 4; rep 0,4/1,5/2,6/3,7; shard=sc 0-3/4-7; dp=dc 0-7
10 fsdp2 W8  rep=4                  -> 1x4x2x1x1; F rep 4 x shard 2; rep 0,2,4,6/1,3,5,7; shard=sc 0,1/2,3/4,5/6,7; dp=dc 0-7
11 fsdp2 W8  rep=8                  -> V rep must be < dp
12 fsdp2 W8  rep=3                  -> V dp not a multiple of rep
13 fsdp2 W8  rep=2 cp=2             -> 1x2x2x2x1; F rep 2 x sc 4; rep 0,4/1,5/2,6/3,7; shard 0,2/1,3/4,6/5,7; cp 0,1/2,3/4,5/6,7; dp 0,2,4,6/1,3,5,7; sc 0-3/4-7; dc 0-7
14 fsdp2 W8  rep=2 tp=2             -> 1x2x2x1x2; F rep 2 x shard 2; rep 0,4/1,5/2,6/3,7; shard=sc 0,2/1,3/4,6/5,7; tp 0,1/2,3/4,5/6,7; dp=dc 0,2,4,6/1,3,5,7
15 fsdp2 W8  rep=2 tp=2 pp=2        -> V rep must be < dp
16 fsdp2 W16 rep=2 tp=2 pp=2        -> 2x2x2x1x2; F rep 2 x shard 2; pp 0,8/../7,15; rep 0,4/../11,15; shard=sc 0,2/../13,15; tp 0,1/../14,15; dp=dc 0,2,4,6/../9,11,13,15
17 fsdp2 W16 rep=2 tp=2 cp=2        -> 1x2x2x2x2; F rep 2 x sc 4; rep 0,8/../7,15; shard 0,4/../11,15; cp 0,2/../13,15; tp 0,1/../14,15; dp 0,4,8,12/../3,7,11,15; sc 0,2,4,6/../9,11,13,15; dc 0,2,4,6,8,10,12,14/../1,3,5,7,9,11,13,15
18 fsdp2 W32 rep=2 tp=2 cp=2 pp=2   -> 2x2x2x2x2; F rep 2 x sc 4; pp 0,16/../15,31; rep 0,8/../23,31; shard 0,4/../27,31; cp 0,2/../29,31; tp 0,1/../30,31; dp 0,4,8,12/../19,23,27,31; sc 0,2,4,6/../25,27,29,31; dc 0,2,4,6,8,10,12,14/../17,19,21,23,25,27,29,31
19 fsdp2 W8  tp=3                   -> V world 8 not divisible by 3 * 1 * 1 = 3
20 fsdp2 W8  tp=2 cp=3              -> V world 8 not divisible by 2 * 3 * 1 = 6
21 fsdp2 W8  tp=0 cp=-1             -> 1x1x8x1x1; F shard 8; shard=dp=sc=dc 0-7
22 fsdp2 W8  tp=none pp=none cp=none ep=none -> 1x1x8x1x1; F shard 8; shard=dp=sc=dc 0-7
23 fsdp2 W8  dp=0                   -> 1x1x8x1x1; F shard 8; shard=dp=sc=dc 0-7
24 fsdp2 W8  dp=-1 tp=2             -> 1x1x4x1x2; F shard 4; shard=dp=sc=dc 0,2,4,6/1,3,5,7; tp 0,1/2,3/4,5/6,7
25 fsdp2 W8  dp=4 tp=2              -> 1x1x4x1x2; F shard 4; shard=dp=sc=dc 0,2,4,6/1,3,5,7; tp 0,1/2,3/4,5/6,7
26 fsdp2 W8  dp=2 tp=2              -> R opaque, on ranks 4-7 only (ranks 0-3 succeed); [use] V
27 fsdp2 W8  dp=8 tp=2              -> R mesh bigger than world (16 > 8); [use] V
28 fsdp2 W8  ep=8                   -> 1x1x8x1x1; moe 1x8; F shard 8; shard=dp=sc=dc=ep 0-7
29 fsdp2 W8  ep=4                   -> 1x1x8x1x1; moe 2x4; F shard 8; shard=dp=sc=dc 0-7; eps 0,4/1,5/2,6/3,7; ep 0-3/4-7
30 fsdp2 W8  ep=2                   -> 1x1x8x1x1; moe 4x2; F shard 8; shard=dp=sc=dc 0-7; eps 0,2,4,6/1,3,5,7; ep 0,1/2,3/4,5/6,7
31 fsdp2 W8  ep=3                   -> V dp*cp*tp = 8, not a multiple of ep 3
32 fsdp2 W8  ep=16                  -> V dp*cp*tp = 8, not a multiple of ep 16
33 fsdp2 W8  ep=4 tp=2              -> 1x1x4x1x2; moe 2x4; F shard 4; shard=dp=sc=dc 0,2,4,6/1,3,5,7; tp 0,1/2,3/4,5/6,7; eps 0,4/1,5/2,6/3,7; ep 0-3/4-7
34 fsdp2 W8  ep=8 tp=2              -> 1x1x4x1x2; moe 1x8; F shard 4; shard=dp=sc=dc 0,2,4,6/1,3,5,7; tp 0,1/2,3/4,5/6,7; ep 0-7
35 fsdp2 W8  ep=2 cp=2              -> 1x1x4x2x1; moe 4x2; F sc 8; shard=dp=eps 0,2,4,6/1,3,5,7; cp=ep 0,1/2,3/4,5/6,7; sc=dc 0-7
36 fsdp2 W8  ep=4 pp=2              -> 2x1x4x1x1; moe 1x4; F shard 4; pp 0,4/1,5/2,6/3,7; shard=dp=sc=dc=ep 0-3/4-7
37 fsdp2 W8  ep=2 pp=2              -> 2x1x4x1x1; moe 2x2; F shard 4; pp 0,4/1,5/2,6/3,7; shard=dp=sc=dc 0-3/4-7; eps 0,2/1,3/4,6/5,7; ep 0,1/2,3/4,5/6,7
38 fsdp2 W8  ep=8 pp=2              -> V dp*cp*tp = 4, not a multiple of ep 8
39 fsdp2 W8  ep=4 rep=2             -> 1x2x4x1x1; moe 2x4; F rep 2 x shard 4; rep=eps 0,4/1,5/2,6/3,7; shard=sc=ep 0-3/4-7; dp=dc 0-7
40 fsdp2 W16 ep=4 pp=2 cp=2         -> 2x1x4x2x1; moe 2x4; F sc 8; pp 0,8/../7,15; shard=dp 0,2,4,6/../9,11,13,15; cp 0,1/../14,15; sc=dc 0-7/../8-15; eps 0,4/../11,15; ep 0-3/../12-15
41 fsdp2 W16 ep=8 tp=2 rep=2        -> 1x2x4x1x2; moe 2x8; F rep 2 x shard 4; rep=eps 0,8/../7,15; shard=sc 0,2,4,6/../9,11,13,15; tp 0,1/../14,15; dp=dc 0,2,4,6,8,10,12,14/../1,3,5,7,9,11,13,15; ep 0-7/../8-15
42 fsdp2 W1  ep=2                   -> V dp*cp*tp = 1, not a multiple of ep 2
43 fsdp2 W4  pp=4                   -> 4x1x1x1x1; F shard 1; pp 0-3
44 fsdp2 W6  tp=2                   -> 1x1x3x1x2; F shard 3; shard=dp=sc=dc 0,2,4/1,3,5; tp 0,1/2,3/4,5
45 fsdp2 W12 tp=2 pp=3              -> 3x1x2x1x2; F shard 2; pp 0,4,8/../3,7,11; shard=dp=sc=dc 0,2/../9,11; tp 0,1/../10,11
46 fsdp2 W4  tp="2"                 -> 1x1x4x1x1; F shard 4; shard=dp=sc=dc 0-3
47 fsdp2 W4  rep=0                  -> 1x1x4x1x1; F shard 4; shard=dp=sc=dc 0-3
48 mfsdp W1  -                      -> 1x1x1
49 mfsdp W8  -                      -> 8x1x1; dp 0-7
50 mfsdp W8  tp=2                   -> 4x1x2; dp 0,2,4,6/1,3,5,7; tp 0,1/2,3/4,5/6,7
51 mfsdp W8  cp=2                   -> 4x2x1; dp 0,2,4,6/1,3,5,7; cp 0,1/2,3/4,5/6,7; dc 0-7
52 mfsdp W8  tp=2 cp=2              -> 2x2x2; dp 0,4/1,5/2,6/3,7; cp 0,2/1,3/4,6/5,7; tp 0,1/2,3/4,5/6,7; dc 0,2,4,6/1,3,5,7
53 mfsdp W2  tp=2                   -> 1x1x2; tp 0,1
54 mfsdp W8  tp=3                   -> V world 8 not divisible by 3 * 1 = 3
55 mfsdp W8  pp=2                   -> V (pp > 1)
56 mfsdp W8  ep=2                   -> V (ep > 1)
57 mfsdp W8  rep=2                  -> V rep is FSDP2 only
58 mfsdp W8  rep=1                  -> 8x1x1; dp 0-7
59 mfsdp W8  dp=4 tp=2              -> 4x1x2; dp 0,2,4,6/1,3,5,7; tp 0,1/2,3/4,5/6,7
60 mfsdp W8  dp=3 tp=2              -> upstream: accepted on ranks 0-5, opaque failure on 6,7; [use] V
61 ddp   W8  -                      -> no mesh, no moe mesh
62 ddp   W8  dp=8                   -> no mesh, no moe mesh
63 ddp   W8  dp=5                   -> no mesh, no moe mesh
64 ddp   W8  tp=2                   -> V (tp > 1)
65 ddp   W8  pp=2                   -> V (pp > 1)
66 ddp   W8  cp=2                   -> V (cp > 1)
67 ddp   W8  ep=2                   -> V (ep > 1)
68 ddp   W8  rep=2                  -> V rep is FSDP2 only
69 ddp   W8  rep=1                  -> no mesh, no moe mesh
70 fsdp2 W8  ranks=[0,1,2,3] dp=2 tp=2 -> 1x1x2x1x2; F shard 2; shard 0,2/1,3; tp 0,1/2,3; dp = sc = dc = shard; ranks 4-7 hold no groups
71 fsdp2 W8  ranks=[4,5,6,7] dp=2 tp=2 -> 1x1x2x1x2; F shard 2; shard 4,6/5,7; tp 4,5/6,7; dp = sc = dc = shard; ranks 0-3 hold no groups
72 fsdp2 W8  ranks=[0,1,2] dp=2 tp=2 -> V rank list length 3, mesh 4
73 fsdp2 W8  ranks=[0,1,1,2] dp=2 tp=2 -> V duplicate ranks
S1 S26 fsdp2 W8  ep=8            -> moe (pp,ep_shard,ep) = 1x1x8; ep 0-7
S2 S26 fsdp2 W8  ep=2            -> moe 1x4x2; ep 0,1/2,3/4,5/6,7; eps 0,2,4,6/1,3,5,7
S3 S26 fsdp2 W8  ep=2 pp=2       -> moe 2x2x2; pp 0,4/1,5/2,6/3,7; eps 0,2/1,3/4,6/5,7; ep 0,1/2,3/4,5/6,7
L1 fsdp2 W64 tp=8                -> 1x1x8x1x8; tp of rank 0: 0-7; shard of rank 0: 0,8,..,56
L2 fsdp2 W64 pp=2 ep=32          -> 2x1x32x1x1; moe 1x32 per stage; ep 0-31/32-63
L3 fsdp2 W64 pp=2 cp=2 tp=2 rep=2 ep=16 -> dp=8: 2x2x4x2x2; F rep 2 x sc 8; moe 2x16; ep 0-15/16-31/32-47/48-63; eps of rank 0: 0,16
)rows";
