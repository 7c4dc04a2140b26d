-- sessions: what the scripts of sessions share, which are of no shard (see session_join.lua).

local function session_now()
  local time, given = redis.call('TIME'), tonumber(ARGV[1])
  return given > 0 and given or math.floor((time[1] * 1000000 + time[2]) / 1000)
end

-- A number in a session's record. One that cannot be read is found out, and written anew: an attach
-- number above all that were given (they count joins, the time is greater), the nodes by their
-- fields, the grace a minute.
local function session_number(record, field, raw)
  local n = tonumber(raw)
  if n and n >= 0 and n % 1 == 0 and n < 9007199254740992 then return n end
  n = field == 'grace_ms' and 60000 or field == 'number' and session_now() or 0
  for _, name in ipairs(field == 'nodes' and redis.call('HKEYS', record) or {}) do
    if string.sub(name, 1, 3) == 'at:' then n = n + 1 end
  end
  redis.call('HDEL', record, field) -- a removal first: a full store lets the script go on
  redis.call('HSET', record, field, text(n))
  return n
end

-- A session loses a node; with the last one its grace begins. Ms until that ends, -1 when others
-- hold it.
local function session_detach(uuid, record, node, grace_ms, nodes)
  redis.call('HDEL', record, 'at:' .. node)
  redis.call('ZREM', key('at:' .. node), uuid)
  redis.call('HSET', record, 'nodes', text(nodes - 1))
  if nodes > 1 then return -1 end
  redis.call('ZADD', key('graces'), text(session_now() + grace_ms), uuid)
  return grace_ms
end
