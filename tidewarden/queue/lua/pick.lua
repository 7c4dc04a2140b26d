-- pick: read buried tasks as they would be put elsewhere; changes nothing.
-- KEYS    1 the shard  2 the view
-- ARGV    3 tasks at most  4 bytes after which no more are read  5 rank to begin at
-- RETURNS tasks as {id, priority, due, deadline, lease_ms, attempts_max, backoff_ms, payload, lane ("": none)}; strays as {id}
open()
local most, bytes, from = int(3, 'tasks', 1, 1000), int(4, 'bytes', 0, NEVER), int(5, 'rank', 0, NEVER)
local ids, tasks, size = redis.call('ZRANGE', key('buried'), from, from + most - 1), {}, 0
for i = 1, #ids do
  local t = task_get(ids[i])
  tasks[i] = t and {ids[i], t.priority, t.due, t.deadline, t.lease_ms, t.attempts_max, t.backoff_ms, t.payload, t.lane or ''} or {ids[i]}
  size = size + (t and #t.payload or 0)
  if size >= bytes then break end
end
return finish(tasks)
