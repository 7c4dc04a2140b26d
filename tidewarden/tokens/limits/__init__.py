"""
What the answers to one client's refreshes say together: whose matter a failure is, and what others
may send meanwhile.
"""
