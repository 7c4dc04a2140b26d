-- update: changes a task where it lies; a leased one only by its lease number.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 id
--         4 payload given 0|1
--         5 payload
--         6 due mode (0 keep, 1 delay, 2 at)
--         7 due ms
--         8 deadline mode (0 keep, 1 at, 2 within)
--         9 deadline ms
--         10 priority (-1: keep)
--         11 lease (0: none)
-- RETURNS 1, 'NOTFOUND' or 'NOTHELD'
open()
local id, payload, priority, lease =
  ARGV[3], ARGV[5], int(10, 'priority', -1, 99), int(11, 'lease', 0, 9007199254740991)
local due_mode, due, limit_mode, limit =
  int(6, 'due mode', 0, 2),
  int(7, 'due', 0, NEVER),
  int(8, 'deadline mode', 0, 2),
  int(9, 'deadline', 0, NEVER)
local t, r = both_get(id, true)
if not t then return finish('NOTFOUND') end
local where = locate(id, t, r)
if where == 'leased' and r.lease ~= lease or where ~= 'leased' and lease ~= 0 then
  return finish('NOTHELD')
end
-- What grows, a full store refuses here.
if ARGV[4] == '1' and #payload > #t.payload then redis.call('HSET', key('shard'), '', '') end
redis.call('HDEL', key('shard'), '') -- a removal first: a full store lets the script go on
local stood = where == 'delayed' and delayed_score(id, delayed_at(t, r))
local waits = where == 'ready' or where == 'waiting' -- for a consumer, or for its turn in its lane
if waits or where == 'delayed' then index_remove(id, t, r, where) end
local floating = t.deadline == t.due
if ARGV[4] == '1' then t.payload = payload end
if due_mode == 1 then
  t.due = now + due
elseif due_mode == 2 then
  t.due = due
end
if limit_mode == 1 then
  t.deadline = limit
elseif limit_mode == 2 then
  t.deadline = now + limit
elseif floating then
  t.deadline = t.due
end
if priority >= 0 then t.priority = priority end
task_put(id, t)
if due_mode == 0 and stood then
  make_delayed(id, t, stood) -- not asked to move in time: a retry's backoff stays
elseif due_mode == 0 and waits then
  make_ready(id, t) -- likewise when it was kicked or released before it is due
elseif waits or where == 'delayed' then
  index_add(id, t)
end
count('updated')
return finish(1)
