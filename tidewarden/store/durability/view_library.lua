-- tidewarden_view: what a replicated store's data say of the primaryship that writes them; loaded
-- as a library of functions, which replicates with the data.
-- KEYS    open: 1 the primaryship (hash view, stamp, set, seq, founding, node)  2 the view (string)
--         mark: 1 the primaryship
-- ARGV    open: 1 view  2 stamp, counted within the view  3 set ("" while too small)  4 the
--         primary's node.incarnation; mark: none
-- RETURNS open: the view, error STALE unless (view, stamp) is greater than what stands there;
--         mark: {view, seq, set}

local function open(keys, args)
  local stored = redis.call('HMGET', keys[1], 'view', 'stamp')
  local view, stamp = tonumber(args[1]), tonumber(args[2])
  -- a store that was alone until now has its view in the string only
  local stored_view = tonumber(stored[1] or redis.call('GET', keys[2]) or 0)
  local stored_stamp = stored[1] and tonumber(stored[2]) or math.huge
  if view < stored_view or view == stored_view and stamp <= stored_stamp then
    return redis.error_reply(
      'STALE the data are of view ' .. stored_view .. ', stamp ' .. stored_stamp
    )
  end
  redis.call('HSET', keys[1], 'view', args[1], 'stamp', args[2], 'set', args[3], 'node', args[4])
  -- data of another history have another word here
  redis.call('HSETNX', keys[1], 'founding', args[4])
  if view > stored_view then redis.call('SET', keys[2], args[1]) end
  return view
end

local function mark(keys)
  local seq = redis.call('HINCRBY', keys[1], 'seq', 1)
  local stored = redis.call('HMGET', keys[1], 'view', 'set')
  return {tonumber(stored[1] or 0), seq, stored[2] or ''}
end

-- A full store takes them, too: nothing could be confirmed, and no primary be open, otherwise.
redis.register_function{function_name = 'open', callback = open, flags = {'allow-oom'}}
redis.register_function{function_name = 'mark', callback = mark, flags = {'allow-oom'}}
