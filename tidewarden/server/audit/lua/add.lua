-- add: adds an entry to a stream of the audit log. Where it has as many as it keeps, the oldest
-- entry of the user with the most makes room: nobody pushes out what others did.
-- DURABILITY none
-- GROWS   no
-- GUARDED more than its first key is touched
-- KEYS    1 the stream; beside it :users (hash user → entries), :of:<user> (list of their ids, the
--         oldest first)
-- ARGV    1 the user  2 the entry  3 entries at most
-- RETURNS the entry's id
local STEPS = 16 -- entries removed at most: fewer may be kept since the last one
local stream, user, most = KEYS[1], ARGV[1], tonumber(ARGV[3])
local function remove(id) redis.call('XDEL', stream, id) end
-- The user with the most entries, and how many entries are some user's.
local function greatest()
  local found, many, counted = nil, 0, 0
  local users = redis.call('HGETALL', stream .. ':users')
  for i = 1, #users, 2 do
    local count = tonumber(users[i + 1]) or 0
    counted = counted + count
    if count > many then
      found, many = users[i], count
    end
  end
  return found, counted
end
for _ = 1, STEPS do
  local there = redis.call('XLEN', stream)
  if there < most then break end
  local whose, counted = greatest()
  local id = counted >= there and redis.call('LPOP', stream .. ':of:' .. whose)
  if id then
    remove(id)
  else
    -- of a version that counted nobody's, or counted wrongly: the oldest of all
    remove(redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1][1])
  end
  if counted >= there and redis.call('HINCRBY', stream .. ':users', whose, -1) <= 0 then
    redis.call('HDEL', stream .. ':users', whose)
  end
end
local id = redis.call('XADD', stream, '*', 'entry', ARGV[2])
redis.call('RPUSH', stream .. ':of:' .. user, id)
redis.call('HINCRBY', stream .. ':users', user, 1)
return id
