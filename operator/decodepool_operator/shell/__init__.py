"""What runs: watches, a queue of pools, and one look at a pool after another.

| | |
|---|---|
| `application`, `settings` | the program's life; what it is told |
| `logs`, `metrics`, `pool_gauges` | what it tells |
| `scope`, `rivals`, `installed` | what can be watched, and who else does |
| `handlers`, `store`, `audit`, `health` | watches, what they told, and whether they tell the truth |
| `work_queue`, `reconcile`, `observe`, `carry_out`, `events` | one look at a pool: what is seen, done and told |
| `reports`, `pictures`, `answers` | asking workers and gateways; what is known of them then; what their words mean |
| `resolve` | headers of models behind URLs |
"""
